// RopeWrite: a warp computes q of one row and head, or k and v of one row and K/V head.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpThreads;

// A head's q or k as it is written: its norm, rotation and length. In double, where no square of a
// float overflows or underflows.
class HeadVector {
 public:
  // All lanes of the warp.
  LSSAR_DEVICE HeadVector(const CudaRopeWriteArgs& args, const CudaNorm& norm, const float* x,
                          const float* rope)
      : args_(args), norm_(norm), x_(x), rope_(rope) {
    if (norm_.kind != NormKind::kNone) SetNorm();
    if (!args_.normalize) return;
    const double length = sqrt(SumOver([&](int dim) { return Normed(dim) * Normed(dim); }));
    factor_ = 1.0 / (length < double(kMinNorm) ? double(kMinNorm) : length);
  }

  LSSAR_DEVICE float At(int dim) const { return float(Normed(dim) * factor_); }

 private:
  template <typename F>
  LSSAR_DEVICE double SumOver(const F& term) const {
    double sum = 0;
    for (int dim = LaneIdx(); dim < args_.pages.head_dim; dim += kWarpThreads) sum += term(dim);
    for (int mask = 1; mask < kWarpThreads; mask *= 2) sum += ShuffleXor(sum, mask);
    return sum;
  }

  LSSAR_DEVICE void SetNorm() {
    const bool after = args_.norm_after_rotary;
    const auto element = [&](int dim) { return after ? Rotated(dim) : double(x_[dim]); };
    const double size = args_.pages.head_dim;
    const double mean = norm_.kind == NormKind::kLayerNorm ? SumOver(element) / size : 0.0;
    const double squares = SumOver([&](int dim) {
      const double centred = element(dim) - mean;
      return centred * centred;
    });
    mean_ = mean;
    scale_ = 1.0 / sqrt(squares / size + double(norm_.epsilon));
  }

  LSSAR_DEVICE double ApplyNorm(double x, int dim) const {
    const double weight = norm_.weight == nullptr ? 1.0 : double(norm_.weight[dim]);
    const double bias = norm_.bias == nullptr ? 0.0 : double(norm_.bias[dim]);
    return (x - mean_) * scale_ * weight + bias;
  }
  LSSAR_DEVICE bool HasNorm(bool after) const {
    return norm_.kind != NormKind::kNone && args_.norm_after_rotary == after;
  }
  LSSAR_DEVICE double Before(int dim) const {
    return HasNorm(false) ? ApplyNorm(double(x_[dim]), dim) : double(x_[dim]);
  }
  LSSAR_DEVICE double Rotated(int dim) const {
    if (dim >= args_.rotary_dims) return Before(dim);
    const int half = args_.rotary_dims / 2;
    const int pair = args_.half_split ? dim % half : dim / 2;
    const bool is_first = args_.half_split ? dim < half : dim % 2 == 0;
    const int other = args_.half_split ? (is_first ? dim + half : dim - half) : dim ^ 1;
    const double own = Before(dim) * double(rope_[pair]);
    const double sine = Before(other) * double(rope_[half + pair]);
    return is_first ? own - sine : own + sine;
  }
  LSSAR_DEVICE double Normed(int dim) const {
    return HasNorm(true) ? ApplyNorm(Rotated(dim), dim) : Rotated(dim);
  }

  const CudaRopeWriteArgs& args_;
  const CudaNorm& norm_;
  const float* const x_;
  const float* const rope_;  // rotary_dims / 2 cosines, then as many sines
  double mean_ = 0, scale_ = 1, factor_ = 1;
};

// One token's row in a page. Stores rounded elements, and their scale if the type has one.
struct PageRow {
  unsigned char* elements;
  float* scale;
  unsigned char* low;  // kFx16: the low plane; `elements` are the high one
  DType dtype;

  LSSAR_DEVICE void Store(int dim, float value, float own_scale) const {
    if (dtype == DType::kF16) {
      reinterpret_cast<uint16_t*>(elements)[dim] = F16FromFloat(value);
    } else if (dtype == DType::kFx16) {
      const int fixed = ToFixed(value, own_scale), high = FixedHigh(fixed);
      elements[dim] = static_cast<unsigned char>(high + 128);
      low[dim] = static_cast<unsigned char>(fixed - 256 * high + 128);
    } else {
      // quantize.h: QuantizeVector
      float steps =
          own_scale == 0 || !(fabsf(own_scale) < 3.0e38f) ? 0.0f : rintf(value / own_scale);
      steps = steps > 127 ? 127.0f : steps < -127 ? -127.0f : steps;
      reinterpret_cast<int8_t*>(elements)[dim] = int8_t(steps);
    }
  }
  // largest_bits: bits of the largest magnitude of this lane's elements.
  LSSAR_DEVICE float StoreScale(unsigned largest_bits) const {
    if (dtype == DType::kF16) return 1;
    for (int mask = 1; mask < kWarpThreads; mask *= 2) {
      const unsigned other = ShuffleXor(largest_bits, mask);
      largest_bits = other > largest_bits ? other : largest_bits;
    }
    const bool finite = largest_bits < 0x7F800000;
    const float own_scale = dtype == DType::kFx16 ? FixedScale(largest_bits)
                            : finite              ? FloatOfBits(largest_bits) / 127.0f
                                                  : FloatOfBits(0x7FC00000);
    if (LaneIdx() == 0) *scale = own_scale;
    return own_scale;
  }
};

// Where the key and the value of a row's token lie.
struct TokenRows {
  PageRow key, value;
};

LSSAR_DEVICE TokenRows RowsOf(const CudaRopeWriteArgs& args, int row, int head) {
  const CudaRow place = args.rows[row];
  const CudaPages& pages = args.pages;
  const int page = pages.pages[place.first_page + place.position / pages.page_size];
  const int slot = place.position % pages.page_size;
  unsigned char* const k =
      pages.k + size_t(head) * pages.head_bytes + size_t(page) * pages.page_bytes;
  unsigned char* const v =
      pages.v + size_t(head) * pages.value_head_bytes + size_t(page) * pages.value_page_bytes;
  const int row_bytes = pages.head_dim * (args.dtype == DType::kF16 ? 2 : 1);
  const auto scale_in = [&](unsigned char* block) {
    return reinterpret_cast<float*>(block + pages.page_size * row_bytes) + slot;
  };
  const PageRow key = {k + slot * row_bytes, scale_in(k), nullptr, args.dtype};
  if (args.dtype != DType::kFx16) {
    return {key, {v + slot * row_bytes, scale_in(v), nullptr, args.dtype}};
  }
  unsigned char* const low = v + slot * 3 * pages.head_dim;  // then the value, in fp16
  return {{key.elements, key.scale, low, args.dtype},
          {low + pages.head_dim, nullptr, nullptr, DType::kF16}};
}

// Writes element(dim) of one head to a page.
template <typename F>
LSSAR_DEVICE void StoreVector(const PageRow& to, int head_dim, const F& element) {
  unsigned largest = 0;
  for (int dim = LaneIdx(); dim < head_dim; dim += kWarpThreads) {
    largest = LargerBits(largest, element(dim));
  }
  const float scale = to.StoreScale(largest);
  for (int dim = LaneIdx(); dim < head_dim; dim += kWarpThreads) {
    to.Store(dim, element(dim), scale);
  }
}

LSSAR_KERNEL(kThreads) RopeWriteRows(LSSAR_ARGS(CudaRopeWriteArgs) args) {
  WaitForPreviousKernel();
  const int row = BlockX(), num_kv_heads = args.pages.num_heads, head_dim = args.pages.head_dim;
  const int vector = BlockY() * kWarps + WarpIdx();  // heads of q, then of k and v
  if (vector >= args.num_heads + num_kv_heads || args.rows[row].position < 0) return;
  const size_t q_width = size_t(args.num_heads) * size_t(head_dim);
  const size_t kv_width = size_t(num_kv_heads) * size_t(head_dim);
  const float* const x =
      args.qkv + size_t(row) * (q_width + 2 * kv_width) + size_t(vector) * size_t(head_dim);
  const float* const rope = args.rope + size_t(row) * size_t(args.rotary_dims);
  if (vector < args.num_heads) {
    const HeadVector q(args, args.q_norm, x, rope);
    float* const to = args.q + size_t(row) * q_width + size_t(vector) * size_t(head_dim);
    for (int dim = LaneIdx(); dim < head_dim; dim += kWarpThreads) to[dim] = q.At(dim);
    return;
  }
  const int head = vector - args.num_heads;
  const HeadVector k(args, args.k_norm, x, rope);
  const TokenRows to = RowsOf(args, row, head);
  StoreVector(to.key, head_dim, [&](int dim) { return k.At(dim); });
  const float* const v = x + kv_width;
  StoreVector(to.value, head_dim, [&](int dim) { return v[dim]; });
}

}  // namespace

int StartRopeWrite(const CudaRopeWriteArgs& args, void* stream) {
  const LaunchShape shape{
      .num_blocks_x = args.num_rows,
      .num_blocks_y = (args.num_heads + args.pages.num_heads + kWarps - 1) / kWarps,
      .num_threads = kThreads,
      .overlaps_previous = true};
  return Launch(shape, stream, &RopeWriteRows, args);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE
