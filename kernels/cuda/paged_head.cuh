// Addresses of the keys and values of one head of one sequence, and AttendFlat, the slow path for
// rows that need double.
#ifndef LSSAR_KERNELS_CUDA_PAGED_HEAD_CUH_
#define LSSAR_KERNELS_CUDA_PAGED_HEAD_CUH_

#include "kernels/cuda/attention_math.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernel_args.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

// CUDA pages hold keys and values as [slot][dim] (KeyOrder::kSlotMajor). With two planes, the pool
// of K has the high plane, and a slot of the pool of V has the key's low plane and then the value.
template <typename E, int kDim>
struct PagedHead {
  static constexpr int kRowBytes = kDim * E::kBytes;  // of a key, or of its high plane
  static constexpr int kValueRowBytes = kDim * E::Value::kBytes;
  static constexpr int kValueOffset = E::kTwoPlanes ? kDim : 0;     // from a slot to its value
  static constexpr int kSlotBytes = kValueOffset + kValueRowBytes;  // of the pool of V

  const unsigned char* k;  // of the head in page 0
  const unsigned char* v;
  const int32_t* pages;  // of the sequence
  unsigned page_bytes;
  unsigned value_page_bytes;
  int page_shift;
  int scales_offset;  // from a block's first byte to its scales

  LSSAR_DEVICE PagedHead(const CudaPages& from, int first_page, int head)
      : k(from.k + size_t(head) * from.head_bytes),
        v(from.v + size_t(head) * (E::kTwoPlanes ? from.value_head_bytes : from.head_bytes)),
        pages(from.pages + first_page),
        page_bytes(unsigned(from.page_bytes)),
        value_page_bytes(unsigned(E::kTwoPlanes ? from.value_page_bytes : from.page_bytes)),
        page_shift(LowestBit(unsigned(from.page_size))),
        scales_offset(from.page_size * kRowBytes) {}

  LSSAR_DEVICE size_t BlockAt(int key) const {
    return size_t(unsigned(pages[key >> page_shift])) * page_bytes;
  }
  // The same in the pool of V.
  LSSAR_DEVICE size_t ValueBlockAt(int key) const {
    if constexpr (!E::kTwoPlanes) return BlockAt(key);
    return size_t(unsigned(pages[key >> page_shift])) * value_page_bytes;
  }
  LSSAR_DEVICE int Slot(int key) const { return key & ((1 << page_shift) - 1); }
  // Number of keys in the page from `key` on.
  LSSAR_DEVICE int RunLength(int key) const { return (1 << page_shift) - Slot(key); }

  LSSAR_DEVICE const unsigned char* Key(int key) const { return KeyIn(BlockAt(key), key); }
  LSSAR_DEVICE const unsigned char* Value(int key) const { return ValueIn(ValueBlockAt(key), key); }
  // Requires  two planes
  LSSAR_DEVICE const unsigned char* LowPlane(int key) const { return Value(key) - kValueOffset; }
  LSSAR_DEVICE const float* KeyScale(int key) const {
    return reinterpret_cast<const float*>(k + BlockAt(key) + scales_offset) + Slot(key);
  }
  LSSAR_DEVICE const float* ValueScale(int key) const { return ValueScaleIn(BlockAt(key), key); }

  // The same, given the block of the key's page (BlockAt, ValueBlockAt).
  LSSAR_DEVICE const unsigned char* KeyIn(size_t block, int key) const {
    return k + block + Slot(key) * kRowBytes;
  }
  LSSAR_DEVICE const unsigned char* ValueIn(size_t block, int key) const {
    return v + block + Slot(key) * kSlotBytes + kValueOffset;
  }
  LSSAR_DEVICE const float* ValueScaleIn(size_t block, int key) const {
    return reinterpret_cast<const float*>(v + block + scales_offset) + Slot(key);
  }
};

// Element `dim` of a stored value.
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
  const unsigned char* row = work.pages.Key(key);
  double dot = 0;
  if constexpr (E::kTwoPlanes) {
    const float* q = work.args.out + work.vector_idx;  // FixQuery
    const unsigned char* low = work.pages.LowPlane(key);
    LSSAR_NO_UNROLL
    for (int dim = 0; dim < kDim; dim += 8) {
      const Bits64 high_bytes = *reinterpret_cast<const Bits64*>(row + dim);
      const Bits64 low_bytes = *reinterpret_cast<const Bits64*>(low + dim);
      LSSAR_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int high = int(high_bytes.x[i / 4] >> (8 * (i % 4)) & 0xFF) - 128;
        const int rest = int(low_bytes.x[i / 4] >> (8 * (i % 4)) & 0xFF) - 128;
        dot = MulAdd(double(q[dim + i]), double(256 * high + rest), dot);
      }
    }
  } else {
    const float* q = work.args.q + work.vector_idx;
    constexpr int kPieceElements = 16 / E::kBytes;
    LSSAR_NO_UNROLL
    for (int dim = 0; dim < kDim; dim += kPieceElements) {
      const Bits128 piece = *reinterpret_cast<const Bits128*>(row + dim * E::kBytes);
      LSSAR_UNROLL
      for (int i = 0; i < kPieceElements; ++i) {
        dot = MulAdd(double(q[dim + i]), double(E::Element(piece, i)), dot);
      }
    }
  }
  if (E::kHasScales) dot *= double(*work.pages.KeyScale(key));
  return ExactSoftplus(scale * dot);
}

// Writes q in 16-bit fixed point, as floats, to the place of the row's result, which nobody else
// writes or reads meanwhile. Returns the scale of q's integers. All lanes of the warp.
template <typename E, int kDim>
LSSAR_DEVICE float FixQuery(const RowWork<E, kDim>& work) {
  const float* const q = work.args.q + work.vector_idx;
  unsigned largest = 0;
  for (int dim = LaneIdx(); dim < kDim; dim += kWarpThreads) largest = LargerBits(largest, q[dim]);
  for (int mask = 1; mask < kWarpThreads; mask *= 2) {
    const unsigned other = ShuffleXor(largest, mask);
    largest = other > largest ? other : largest;
  }
  const float scale = FixedScale(largest);
  for (int dim = LaneIdx(); dim < kDim; dim += kWarpThreads) {
    work.args.out[work.vector_idx + size_t(dim)] = float(ToFixed(q[dim], scale));
  }
  SyncWarp();
  return scale;
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
  double scale = ScoreScale(args, work.num_keys);
  if constexpr (E::kTwoPlanes) scale *= double(FixQuery(work));
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
      const float scaled = E::Value::kHasScales ? w * *work.pages.ValueScale(first + from) : w;
      weight_sum += double(w);
      ++num_read;
      for (int i = 0; i < kDimsOfLane; ++i) {
        const int dim = lane + i * kWarpThreads;
        if (dim < kDim) sums[i] = MulAdd(scaled, ElementAt<typename E::Value>(row, dim), sums[i]);
      }
    }
  }
  const float inverse = float(1.0 / weight_sum);
  if constexpr (E::kTwoPlanes) SyncWarp();  // all lanes are done with q
  for (int i = 0; i < kDimsOfLane; ++i) {
    const int dim = lane + i * kWarpThreads;
    if (dim < kDim) args.out[work.vector_idx + size_t(dim)] = sums[i] * inverse;
  }
  if (lane == 0 && args.counters != nullptr) {
    AtomicAdd(args.counters + work.sequence, static_cast<unsigned long long>(num_read));
    AtomicAdd(args.flat_rows + work.sequence, 1ULL);
  }
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_PAGED_HEAD_CUH_
