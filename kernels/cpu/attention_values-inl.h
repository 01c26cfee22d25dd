// Weighted sums of values: over the keys that several rows list together, and over the survivors of
// one row. Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_VALUES_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_VALUES_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_VALUES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention_dot-inl.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/float_math-inl.h"
#include "kernels/cpu/kv_head-inl.h"
#include "kernels/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// Rows of floats, row_stride apart.
template <typename T>
struct Rows {
  T* first;
  size_t row_stride;
};

// Writes to `keys` the keys in [begin, end) with a non-zero weight in at least one of the rows, in
// rising order. Returns their number.
// Requires  begin and end are multiples of the vector; `keys` holds end - begin and one vector more
template <size_t kRows>
HWY_INLINE size_t ListKeys(Rows<const float> weights, size_t begin, size_t end, int32_t* keys) {
  const ScoreTag d;
  const hn::RebindToSigned<ScoreTag> d_int;
  [[maybe_unused]] const auto lanes =
      hn::Iota(d_int, 0);  // outside of the loop: compilers build it lane by lane
  size_t count = 0;
  for (size_t key = begin; key < end; key += kScoreLanes) {
    // As integers: the OR of two floats may be a NaN.
    auto any = hn::BitCast(d_int, hn::LoadU(d, weights.first + key));
    for (size_t r = 1; r < kRows; ++r) {
      any = hn::Or(any,
                   hn::BitCast(d_int, hn::LoadU(d, weights.first + r * weights.row_stride + key)));
    }
    const auto survives = hn::Ne(any, hn::Zero(d_int));
    if constexpr (kHasToFront) {
      // A full store: CompressStore is slow on some machines.
      const auto of_lanes = hn::Add(lanes, hn::Set(d_int, int32_t(key)));
      hn::StoreU(ToFront(d_int, of_lanes, survives), d_int, keys + count);
      count += hn::CountTrue(d_int, survives);
    } else {
      ForLanes(hn::RebindMask(d, survives),
               [&](size_t lane) { keys[count++] = int32_t(key + lane); });
    }
  }
  return count;
}

// Multiplies the weights of a vector of keys by the scales of their values. A zero weight stays
// zero whatever its scale; if all weights are zero, the scales are not read. A NaN weight stays
// NaN: the test is Eq, because Ne is false for NaN on some targets.
HWY_INLINE void ScaleWeights(float* weights, const float* scales) {
  const ScoreTag d;
  const ScoreVec w = hn::LoadU(d, weights);
  const auto is_zero = hn::Eq(w, hn::Zero(d));
  if (hn::AllTrue(d, is_zero)) return;
  hn::StoreU(hn::IfThenZeroElse(is_zero, hn::Mul(w, hn::LoadU(d, scales))), d, weights);
}

// The keys of a chunk with a non-zero weight, and the addresses of their values.
template <typename T>
struct ValueList {
  const int32_t* keys;
  const T* const* values;
  size_t count = 0;
  // Those in [first_for_all, num_for_all) are keys of every row of the group. The others (fewer
  // than kGroupRows on either side) are beyond some row's N, or before its window: that row must
  // skip them, because they may be NaN.
  size_t first_for_all = 0;
  size_t num_for_all = 0;
};

// sums[r][dim] += sum over the list of weights[r][key] * value[dim], for kVectors vectors that
// start at `first_dim`. kTail: only the last `tail` dimensions, less than a vector.
template <size_t kRows, size_t kVectors, bool kTail, typename T>
HWY_INLINE void SumValues(const ValueList<T>& list, Rows<const float> weights, size_t first_dim,
                          size_t tail, Rows<float> sums) {
  const ScoreTag d;
  ScoreVec chunk[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) chunk[r][v] = hn::Zero(d);
  }
  const auto load = [&](size_t i, size_t v) {
    const T* from = list.values[i] + first_dim + v * kScoreLanes;
    return kTail ? LoadWideFirst(from, tail) : LoadWide(from);
  };
  const auto add_nonzero = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      for (size_t r = 0; r < kRows; ++r) {
        const float w = weights.first[size_t(list.keys[i]) + r * weights.row_stride];
        if (w == 0.0f) continue;
        for (size_t v = 0; v < kVectors; ++v) {
          chunk[r][v] = hn::MulAdd(hn::Set(d, w), load(i, v), chunk[r][v]);
        }
      }
    }
  };
  add_nonzero(0, list.first_for_all);
  for (size_t i = list.first_for_all; i < list.num_for_all; ++i) {
    const float* w = weights.first + list.keys[i];
    ScoreVec value[kVectors];
    for (size_t v = 0; v < kVectors; ++v) value[v] = load(i, v);
    for (size_t r = 0; r < kRows; ++r) {
      const ScoreVec w_r = hn::Set(d, w[r * weights.row_stride]);
      for (size_t v = 0; v < kVectors; ++v) chunk[r][v] = hn::MulAdd(w_r, value[v], chunk[r][v]);
    }
  }
  add_nonzero(list.num_for_all, list.count);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      float* to = sums.first + r * sums.row_stride + first_dim + v * kScoreLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), chunk[r][v]), d, to);
    }
  }
}

// The same for all dimensions, with as many vectors per call as registers allow.
template <size_t kRows, typename T>
HWY_INLINE void SumValuesOfHead(const ValueList<T>& list, Rows<const float> weights,
                                size_t head_dim, Rows<float> sums) {
  constexpr size_t kMost = kRows == 1 ? kRowVectors : kGroupVectors;
  size_t dim = 0;
  for (; dim + kMost * kScoreLanes <= head_dim; dim += kMost * kScoreLanes) {
    SumValues<kRows, kMost, false>(list, weights, dim, 0, sums);
  }
  for (; dim + kScoreLanes <= head_dim; dim += kScoreLanes) {
    SumValues<kRows, 1, false>(list, weights, dim, 0, sums);
  }
  if (dim < head_dim) SumValues<kRows, 1, true>(list, weights, dim, head_dim - dim, sums);
}

// Calls begin(chunk, slot) for the chunks of [first, end) in order, and finish(slot) for each when
// two later ones have begun: what begin prefetches has arrived by then. A slot is reused.
template <typename Slot, class Begin, class Finish>
HWY_INLINE void WalkChunksAhead(int first, int end, const Begin& begin, const Finish& finish) {
  constexpr int kChunksAhead = 2;
  constexpr int kSlots = kChunksAhead + 1;
  Slot slots[kSlots];
  for (int i = 0; first + (i - kChunksAhead) * kChunkKeys < end; ++i) {
    const int chunk = first + i * kChunkKeys;
    if (chunk < end) begin(chunk, slots[i % kSlots]);
    if (i >= kChunksAhead) finish(slots[(i - kChunksAhead) % kSlots]);
  }
}

// Where the values of a chunk are, by page.
template <typename T>
struct ChunkValues {
  // The value of the chunk's key k begins at values[k >> page_shift] + k * stride, its scale is
  // scales[k >> page_shift][k].
  const T* values[kChunkKeys / kMinPageSize];
  const float* scales[kChunkKeys / kMinPageSize];
  size_t stride;
  int page_shift;

  HWY_INLINE const T* Value(int32_t key) const {
    return values[uint32_t(key) >> page_shift] + size_t(key) * stride;
  }
  HWY_INLINE const float* Scale(int32_t key) const {
    return scales[uint32_t(key) >> page_shift] + key;
  }
};

// The survivors of a chunk in one row: their keys, counted from the chunk's first, and weights.
struct Survivors {
  const int32_t* keys = nullptr;
  const float* weights = nullptr;
  size_t count = 0;
};

// sums[dim] += sum over the survivors of weight * value[dim], for kVectors vectors that start at
// `first_dim`: the same multiply-adds as SumValues of one row. kTail: as there.
template <size_t kVectors, bool kTail, typename T>
HWY_INLINE void SumSurvivors(const Survivors& list, const ChunkValues<T>& values, size_t head_dim,
                             size_t first_dim, float* sums) {
  const ScoreTag d;
  ScoreVec chunk[kVectors];
  for (size_t v = 0; v < kVectors; ++v) chunk[v] = hn::Zero(d);
  for (size_t i = 0; i < list.count; ++i) {
    float weight = list.weights[i];
    if (weight == 0.0f) continue;
    const int32_t key = list.keys[i];
    if constexpr (kHasScales<T>) weight *= *values.Scale(key);
    const T* from = values.Value(key) + first_dim;
    const ScoreVec w = hn::Set(d, weight);
    for (size_t v = 0; v < kVectors; ++v) {
      const ScoreVec value = kTail ? LoadWideFirst(from + v * kScoreLanes, head_dim - first_dim)
                                   : LoadWide(from + v * kScoreLanes);
      chunk[v] = FusedMulAdd(d, w, value, chunk[v]);
    }
  }
  for (size_t v = 0; v < kVectors; ++v) {
    float* to = sums + first_dim + v * kScoreLanes;
    hn::StoreU(hn::Add(hn::LoadU(d, to), chunk[v]), d, to);
  }
}

// The same for all dimensions.
template <typename T>
HWY_INLINE void SumSurvivorsOfHead(const Survivors& list, const ChunkValues<T>& values,
                                   size_t head_dim, float* sums) {
  size_t dim = 0;
  for (; dim + kRowVectors * kScoreLanes <= head_dim; dim += kRowVectors * kScoreLanes) {
    SumSurvivors<kRowVectors, false>(list, values, head_dim, dim, sums);
  }
  for (; dim + kScoreLanes <= head_dim; dim += kScoreLanes) {
    SumSurvivors<1, false>(list, values, head_dim, dim, sums);
  }
  if (dim < head_dim) SumSurvivors<1, true>(list, values, head_dim, dim, sums);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
