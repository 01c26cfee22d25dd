// Addresses of the keys and values of one head of one sequence, and AttendFlat, the slow path for
// rows that need double.
#ifndef LSSAR_KERNELS_CUDA_PAGED_HEAD_CUH_
#define LSSAR_KERNELS_CUDA_PAGED_HEAD_CUH_

#include "kernels/cuda/attention_math.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernel_args.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

// CUDA pages hold keys and values as [slot][dim] (KeyOrder::kSlotMajor).
template <typename E, int kDim>
struct PagedHead {
  static constexpr int kRowBytes = kDim * E::kBytes;

  const unsigned char* k;  // of the head in page 0
  const unsigned char* v;
  const int32_t* pages;  // of the sequence
  unsigned page_bytes;
  int page_shift;
  int scales_offset;  // from a block's first byte to its scales

  LSSAR_DEVICE PagedHead(const CudaPages& from, int first_page, int head)
      : k(from.k + size_t(head) * from.head_bytes),
        v(from.v + size_t(head) * from.head_bytes),
        pages(from.pages + first_page),
        page_bytes(unsigned(from.page_bytes)),
        page_shift(LowestBit(unsigned(from.page_size))),
        scales_offset(from.page_size * kRowBytes) {}

  LSSAR_DEVICE size_t BlockAt(int key) const {
    return size_t(unsigned(pages[key >> page_shift])) * page_bytes;
  }
  LSSAR_DEVICE int Slot(int key) const { return key & ((1 << page_shift) - 1); }
  // Number of keys in the page from `key` on.
  LSSAR_DEVICE int RunLength(int key) const { return (1 << page_shift) - Slot(key); }

  LSSAR_DEVICE const unsigned char* Key(int key) const { return KeyIn(BlockAt(key), key); }
  LSSAR_DEVICE const unsigned char* Value(int key) const { return ValueIn(BlockAt(key), key); }
  LSSAR_DEVICE const float* KeyScale(int key) const {
    return reinterpret_cast<const float*>(k + BlockAt(key) + scales_offset) + Slot(key);
  }
  LSSAR_DEVICE const float* ValueScale(int key) const { return ValueScaleIn(BlockAt(key), key); }

  // The same, given the block of the key's page (BlockAt).
  LSSAR_DEVICE const unsigned char* KeyIn(size_t block, int key) const {
    return k + block + Slot(key) * kRowBytes;
  }
  LSSAR_DEVICE const unsigned char* ValueIn(size_t block, int key) const {
    return v + block + Slot(key) * kRowBytes;
  }
  LSSAR_DEVICE const float* ValueScaleIn(size_t block, int key) const {
    return reinterpret_cast<const float*>(v + block + scales_offset) + Slot(key);
  }
};

// Element `dim` of a stored row.
template <typename E>
LSSAR_DEVICE float ElementAt(const unsigned char* row, int dim) {
  if constexpr (E::kHasScales) {
    return float(reinterpret_cast<const int8_t*>(row)[dim]);
  } else {
    return E::ToFloat(reinterpret_cast<const uint16_t*>(row)[dim]);
  }
}

// One query row, of one head or of adjacent heads that share a K/V head.
template <typename E, int kDim>
struct RowWork {
  const CudaAttentionArgs& args;
  PagedHead<E, kDim> pages;
  int num_keys;
  int sequence;
  size_t vector_idx;  // of the row's first head in args.q and args.out
  int num_heads = 1;

  LSSAR_DEVICE RowWork OfHead(int head) const {
    return {args, pages, num_keys, sequence, vector_idx + size_t(head * kDim), 1};
  }
};

// The softplus score of one key in double, computed by one lane, which loads 16 bytes at a time.
// Not unrolled: all of q, as double, would be held in registers.
template <typename E, int kDim>
LSSAR_DEVICE double ExactScore(const RowWork<E, kDim>& work, double scale, int key) {
  const float* q = work.args.q + work.vector_idx;
  const unsigned char* row = work.pages.Key(key);
  double dot = 0;
  constexpr int kPieceElements = 16 / E::kBytes;
  LSSAR_NO_UNROLL
  for (int dim = 0; dim < kDim; dim += kPieceElements) {
    const Bits128 piece = *reinterpret_cast<const Bits128*>(row + dim * E::kBytes);
    LSSAR_UNROLL
    for (int i = 0; i < kPieceElements; ++i) {
      dot = MulAdd(double(q[dim + i]), double(E::Element(piece, i)), dot);
    }
  }
  if (E::kHasScales) dot *= double(*work.pages.KeyScale(key));
  return ExactSoftplus(scale * dot);
}

template <typename T>
LSSAR_DEVICE T SumOfLanes(T value) {
  for (int mask : {1, 8, 16, 2, 4}) value += ShuffleXor(value, mask);
  return value;
}

// Computes a row whose peak, or largest score, is within fp32's rounding error: about 2% of a
// trained model's rows, nearly all among the first dozens of a prompt. One warp computes the row,
// with scores in double. Sums over keys are one chain a lane, lanes added in a fixed order; values
// are one chain over keys.
template <typename E, int kDim>
LSSAR_DEVICE_CALL void AttendFlat(const RowWork<E, kDim>& work) {
  constexpr int kDimsOfLane = (kDim + kWarpThreads - 1) / kWarpThreads;
  const CudaAttentionArgs& args = work.args;
  const int lane = LaneIdx();
  const double scale = ScoreScale(args, work.num_keys);
  double sum = 0, max = 0;
  for (int key = lane; key < work.num_keys; key += kWarpThreads) {
    const double score = ExactScore(work, scale, key);
    sum += score;
    max = score > max ? score : max;
  }
  sum = SumOfLanes(sum);
  for (int mask = 1; mask < kWarpThreads; mask *= 2) max = fmax(max, ShuffleXor(max, mask));

  const double gain = double(work.num_keys) / sum;
  const double offset = work.num_keys <= 3 ? 0.0 : 1.0;
  const double peak = gain * max - offset;
  const bool keeps_scores = !args.form.reweights || peak <= double(kDegeneratePeak);

  float sums[kDimsOfLane] = {};
  double weight_sum = 0;
  int num_read = 0;
  for (int first = 0; first < work.num_keys; first += kWarpThreads) {
    const int key = first + lane;
    float weight = 0;
    if (key < work.num_keys) {
      const double score = ExactScore(work, scale, key);
      weight = float(score);
      if (!keeps_scores) {
        const float u = float((gain * score - offset) / peak);
        weight = u < args.floor ? 0.0f : PowerOf(args, u);
        if (weight < kNegligibleWeight) weight = 0;
      }
    }
    for (unsigned left = Ballot(weight != 0); left != 0; left &= left - 1) {
      const int from = LowestBit(left);
      const float w = Shuffle(weight, from);
      const unsigned char* row = work.pages.Value(first + from);
      const float scaled = E::kHasScales ? w * *work.pages.ValueScale(first + from) : w;
      weight_sum += double(w);
      ++num_read;
      for (int i = 0; i < kDimsOfLane; ++i) {
        const int dim = lane + i * kWarpThreads;
        if (dim < kDim) sums[i] = MulAdd(scaled, ElementAt<E>(row, dim), sums[i]);
      }
    }
  }
  const float inverse = float(1.0 / weight_sum);
  for (int i = 0; i < kDimsOfLane; ++i) {
    const int dim = lane + i * kWarpThreads;
    if (dim < kDim) args.out[work.vector_idx + size_t(dim)] = sums[i] * inverse;
  }
  if (lane == 0 && args.counters != nullptr) {
    AtomicAdd(args.counters + work.sequence, static_cast<unsigned long long>(num_read));
  }
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_PAGED_HEAD_CUH_
