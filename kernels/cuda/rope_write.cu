// RopeWrite: a warp computes q, k and v of one row of one head.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpThreads;

// A head's vector, rotated by the row's angles. Pair i is elements A(i) and B(i).
struct RotatedVector {
  const float* x;
  const float* rope;  // head_dim / 2 cosines, then as many sines
  int half;
  bool half_split;
  double factor = 1;  // 1 / norm

  LSSAR_DEVICE int A(int i) const { return half_split ? i : 2 * i; }
  LSSAR_DEVICE int B(int i) const { return half_split ? i + half : 2 * i + 1; }
  LSSAR_DEVICE float RotatedA(int i) const {
    const double a = x[A(i)], b = x[B(i)], cosine = rope[i], sine = rope[half + i];
    return float((a * cosine - b * sine) * factor);
  }
  LSSAR_DEVICE float RotatedB(int i) const {
    const double a = x[A(i)], b = x[B(i)], cosine = rope[i], sine = rope[half + i];
    return float((b * cosine + a * sine) * factor);
  }

  // In double, where no square of a float overflows or underflows.
  LSSAR_DEVICE void Normalize() {
    double squares = 0;
    for (int i = LaneIdx(); i < half; i += kWarpThreads) {
      const double a = x[A(i)], b = x[B(i)];
      squares += a * a + b * b;
    }
    for (int mask = 1; mask < kWarpThreads; mask *= 2) squares += ShuffleXor(squares, mask);
    const double norm = sqrt(squares);
    factor = 1.0 / (norm < double(kMinNorm) ? double(kMinNorm) : norm);
  }
};

// One token's row in a page. Stores rounded elements, and their scale if the type has one.
struct PageRow {
  unsigned char* elements;
  float* scale;
  DType dtype;

  LSSAR_DEVICE void Store(int dim, float value, float own_scale) const {
    if (dtype == DType::kF16) {
      reinterpret_cast<uint16_t*>(elements)[dim] = F16FromFloat(value);
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
    if (dtype != DType::kI8) return 1;
    for (int mask = 1; mask < kWarpThreads; mask *= 2) {
      const unsigned other = ShuffleXor(largest_bits, mask);
      largest_bits = other > largest_bits ? other : largest_bits;
    }
    const bool finite = largest_bits < 0x7F800000;
    const float own_scale = finite ? FloatOfBits(largest_bits) / 127.0f : FloatOfBits(0x7FC00000);
    if (LaneIdx() == 0) *scale = own_scale;
    return own_scale;
  }
};

LSSAR_DEVICE unsigned Larger(unsigned largest_bits, float x) {
  const unsigned bits = BitsOfFloat(x) & 0x7FFFFFFF;
  return bits > largest_bits ? bits : largest_bits;
}

LSSAR_DEVICE PageRow RowOf(const CudaRopeWriteArgs& args, unsigned char* pool, int row, int head) {
  const CudaRow place = args.rows[row];
  const CudaPages& pages = args.pages;
  const int page = pages.pages[place.first_page + place.position / pages.page_size];
  const int slot = place.position % pages.page_size;
  unsigned char* block = pool + size_t(head) * pages.head_bytes + size_t(page) * pages.page_bytes;
  const int row_bytes = pages.head_dim * (args.dtype == DType::kI8 ? 1 : 2);
  return {block + slot * row_bytes,
          reinterpret_cast<float*>(block + pages.page_size * row_bytes) + slot, args.dtype};
}

LSSAR_KERNEL(kThreads) RopeWriteRows(LSSAR_ARGS(CudaRopeWriteArgs) args) {
  const int row = BlockX(), head = BlockY() * kWarps + WarpIdx();
  if (head >= args.pages.num_heads || args.rows[row].position < 0) return;
  const int head_dim = args.pages.head_dim, half = head_dim / 2;
  const size_t width = size_t(args.pages.num_heads) * size_t(head_dim);
  const size_t at = size_t(head) * size_t(head_dim);
  const float* x = args.qkv + size_t(row) * 3 * width + at;
  const float* rope = args.rope + size_t(row) * size_t(head_dim);

  RotatedVector q{x, rope, half, args.half_split};
  if (args.normalize) q.Normalize();
  float* to = args.q + size_t(row) * width + at;
  for (int i = LaneIdx(); i < half; i += kWarpThreads) {
    to[q.A(i)] = q.RotatedA(i);
    to[q.B(i)] = q.RotatedB(i);
  }

  RotatedVector k{x + width, rope, half, args.half_split};
  if (args.normalize) k.Normalize();
  const PageRow key = RowOf(args, args.pages.k, row, head);
  unsigned largest = 0;
  for (int i = LaneIdx(); i < half; i += kWarpThreads) {
    largest = Larger(Larger(largest, k.RotatedA(i)), k.RotatedB(i));
  }
  const float key_scale = key.StoreScale(largest);
  for (int i = LaneIdx(); i < half; i += kWarpThreads) {
    key.Store(k.A(i), k.RotatedA(i), key_scale);
    key.Store(k.B(i), k.RotatedB(i), key_scale);
  }

  const float* v = x + 2 * width;
  const PageRow value = RowOf(args, args.pages.v, row, head);
  largest = 0;
  for (int dim = LaneIdx(); dim < head_dim; dim += kWarpThreads) largest = Larger(largest, v[dim]);
  const float value_scale = value.StoreScale(largest);
  for (int dim = LaneIdx(); dim < head_dim; dim += kWarpThreads) {
    value.Store(dim, v[dim], value_scale);
  }
}

}  // namespace

int StartRopeWrite(const CudaRopeWriteArgs& args, void* stream) {
  const LaunchShape shape{.num_blocks_x = args.num_rows,
                          .num_blocks_y = (args.pages.num_heads + kWarps - 1) / kWarps,
                          .num_threads = kThreads};
  return Launch(shape, stream, &RopeWriteRows, args);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE
