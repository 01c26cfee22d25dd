// RopeWrite: a warp computes q, k or v of one row and head. It loads all it needs at once and keeps
// it in registers; what it writes is in shared memory in between.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpThreads;
constexpr int kMaxHeadDim = 128;
constexpr int kDimsOfLane = kMaxHeadDim / kWarpThreads;

// A head's q or k as it is written: its norm, rotation and length. In double, where no square of a
// float overflows or underflows. A lane has dimensions lane, lane + 32, ...
class HeadVector {
 public:
  // Loads the elements.
  LSSAR_DEVICE HeadVector(const CudaRopeWriteArgs& args, const CudaNorm& norm, const float* x,
                          const float* rope)
      : args_(args), norm_(norm) {
    const int half = args.rotary_dims / 2;
    ForEachDim([&](int i, int dim) {
      own_[i] = x[dim];
      if (dim >= args.rotary_dims) return;
      const int pair = args.half_split ? dim % half : dim / 2;
      partner_[i] = x[Partner(dim)];
      cosine_[i] = rope[pair];
      sine_[i] = IsFirst(dim) ? -rope[half + pair] : rope[half + pair];
    });
  }

  // All lanes of the warp.
  LSSAR_DEVICE void Store(float* to) const {
    double values[kDimsOfLane];
    ForEachDim([&](int i, int) { values[i] = double(own_[i]); });
    NormScale before;
    if (HasNorm(false)) before = ScaleOf(values);
    ForEachDim([&](int i, int dim) {
      values[i] = before.Apply(values[i], norm_, dim);
      if (dim >= args_.rotary_dims) return;
      const double partner = before.Apply(double(partner_[i]), norm_, Partner(dim));
      values[i] = values[i] * double(cosine_[i]) + partner * double(sine_[i]);
    });
    if (HasNorm(true)) {
      const NormScale after = ScaleOf(values);
      ForEachDim([&](int i, int dim) { values[i] = after.Apply(values[i], norm_, dim); });
    }
    const double factor = args_.normalize ? InverseLength(values) : 1.0;
    ForEachDim([&](int i, int dim) { to[dim] = float(values[i] * factor); });
  }

 private:
  struct NormScale {
    bool exists = false;
    double mean = 0, scale = 1;

    LSSAR_DEVICE double Apply(double x, const CudaNorm& norm, int dim) const {
      if (!exists) return x;
      const double weight = norm.weight == nullptr ? 1.0 : double(norm.weight[dim]);
      const double bias = norm.bias == nullptr ? 0.0 : double(norm.bias[dim]);
      return (x - mean) * scale * weight + bias;
    }
  };

  template <typename F>
  LSSAR_DEVICE void ForEachDim(const F& f) const {
    LSSAR_UNROLL
    for (int i = 0; i < kDimsOfLane; ++i) {
      const int dim = LaneIdx() + i * kWarpThreads;
      if (dim < args_.pages.head_dim) f(i, dim);
    }
  }
  template <typename F>
  LSSAR_DEVICE double SumOver(const F& term) const {
    double sum = 0;
    ForEachDim([&](int i, int) { sum += term(i); });
    return AllLanes(sum);
  }

  LSSAR_DEVICE bool HasNorm(bool after) const {
    return norm_.kind != NormKind::kNone && args_.norm_after_rotary == after;
  }
  LSSAR_DEVICE NormScale ScaleOf(const double (&values)[kDimsOfLane]) const {
    const double size = args_.pages.head_dim;
    const double mean =
        norm_.kind == NormKind::kLayerNorm ? SumOver([&](int i) { return values[i]; }) / size : 0.0;
    const double squares = SumOver([&](int i) {
      const double centred = values[i] - mean;
      return centred * centred;
    });
    return {.exists = true,
            .mean = mean,
            .scale = double(InverseRoot(squares / size + double(norm_.epsilon)))};
  }
  LSSAR_DEVICE double InverseLength(const double (&values)[kDimsOfLane]) const {
    const double squares = SumOver([&](int i) { return values[i] * values[i]; });
    const double least = double(kMinNorm) * double(kMinNorm);
    return double(InverseRoot(squares < least ? least : squares));
  }

  LSSAR_DEVICE bool IsFirst(int dim) const {
    return args_.half_split ? dim < args_.rotary_dims / 2 : dim % 2 == 0;
  }
  // The dimension that is rotated with `dim`.
  LSSAR_DEVICE int Partner(int dim) const {
    if (!args_.half_split) return dim ^ 1;
    return IsFirst(dim) ? dim + args_.rotary_dims / 2 : dim - args_.rotary_dims / 2;
  }

  const CudaRopeWriteArgs& args_;
  const CudaNorm& norm_;
  float own_[kDimsOfLane] = {}, partner_[kDimsOfLane] = {};
  float cosine_[kDimsOfLane] = {}, sine_[kDimsOfLane] = {};
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
  const int vector = BlockY() * kWarps + WarpIdx();  // heads of q, then of k, then of v
  if (vector >= args.num_heads + 2 * num_kv_heads) return;
  const int num_vectors = args.num_heads + 2 * num_kv_heads;
  const float* const x =
      args.qkv + (size_t(row) * size_t(num_vectors) + size_t(vector)) * size_t(head_dim);
  const float* const rope = args.rope + size_t(row) * size_t(args.rotary_dims);
  // A lane reads what it wrote.
  float* const own = reinterpret_cast<float*>(SharedMemory()) + WarpIdx() * kMaxHeadDim;
  const bool is_q = vector < args.num_heads, is_v = vector >= args.num_heads + num_kv_heads;
  if (is_v) {
    for (int dim = LaneIdx(); dim < head_dim; dim += kWarpThreads) own[dim] = x[dim];
  } else {
    HeadVector(args, is_q ? args.q_norm : args.k_norm, x, rope).Store(own);
  }
  if (args.rows[row].position < 0) return;
  const auto element = [&](int dim) { return own[dim]; };
  if (is_q) {
    float* const to =
        args.q + (size_t(row) * size_t(args.num_heads) + size_t(vector)) * size_t(head_dim);
    for (int dim = LaneIdx(); dim < head_dim; dim += kWarpThreads) to[dim] = own[dim];
  } else if (is_v) {
    const int head = vector - args.num_heads - num_kv_heads;
    StoreVector(RowsOf(args, row, head).value, head_dim, element);
  } else {
    StoreVector(RowsOf(args, row, vector - args.num_heads).key, head_dim, element);
  }
}

}  // namespace

int StartRopeWrite(const CudaRopeWriteArgs& args, void* stream) {
  const LaunchShape shape{
      .num_blocks_x = args.num_rows,
      .num_blocks_y = (args.num_heads + 2 * args.pages.num_heads + kWarps - 1) / kWarps,
      .num_threads = kThreads,
      .shared_bytes = kWarps * kMaxHeadDim * sizeof(float),
      .overlaps_previous = true};
  return Launch(shape, stream, &RopeWriteRows, args);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE
