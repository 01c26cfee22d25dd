// Dot products of attention: tiles of q and keys in registers, and what the other register loops
// share: the vectors of scores, sums over their lanes, lanes by mask. Included once per target,
// inside foreach_target.h.
//
// The order of a sum does not depend on the number of rows or keys of a call: a dot product is one
// multiply-add chain over dim, a sum over a chunk's keys has one accumulator per lane (lane = key
// mod lanes), and a weighted sum of values is one multiply-add chain over a chunk's keys.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_DOT_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_DOT_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_DOT_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/kv_head-inl.h"
#include "kernels/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

using ScoreTag = hn::CappedTag<float, 16>;
using ScoreVec = hn::Vec<ScoreTag>;
constexpr size_t kScoreLanes = hn::MaxLanes(ScoreTag());

// A sum over keys of a row that is re-weighted has 16 accumulators, on every target.
constexpr size_t kSumVectors = 16 / kScoreLanes;

// Keys of a tile: their dot products are computed together.
constexpr size_t kTileKeys = 64;
constexpr size_t kTileVectors = kTileKeys / kScoreLanes;

// Vectors of keys, or of a value's dimensions, that kGroupRows rows process together: 16
// accumulators in the 32 registers of AVX-512, 8 in 16 registers elsewhere.
constexpr size_t kGroupVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
// The same for a single row: enough independent chains to hide the latency of a multiply-add.
constexpr size_t kRowVectors = std::min<size_t>(kTileVectors, 8);

template <typename T>
HWY_INLINE ScoreVec LoadWide(const T* from) {
  return LoadWideAs(ScoreTag(), from);
}

// The first `count` elements of a vector. The others are zero, and their memory is not read.
template <typename T>
HWY_INLINE ScoreVec LoadWideFirst(const T* from, size_t count) {
  HWY_ALIGN T whole[kScoreLanes] = {};
  std::memcpy(whole, from, count * sizeof(T));
  return LoadWide(whole);
}

// Up to kTileVectors vectors of keys. vectors[v] + dim * stride: the elements of one dim.
template <typename T>
struct KeyTile {
  const T* const* vectors;
  size_t stride;
  // scales[v]: of the vector's keys. Null: elements have no scales.
  const float* const* scales;
};

// out[r * out_stride + v * lanes + lane] = <q_r, key>, for kVectors vectors of keys. A key's scale
// multiplies the whole sum: one multiplication instead of one per dim. kStreams, for keys that come
// from memory: calls meanwhile(v) for each v < kVectors at even distances: arithmetic that overlaps
// with memory reads.
// Shapes  q [dim][kRows]
template <size_t kRows, size_t kVectors, bool kStreams, typename T, class Meanwhile>
HWY_INLINE void DotTile(const float* HWY_RESTRICT q, size_t head_dim, const KeyTile<T>& keys,
                        float* HWY_RESTRICT out, size_t out_stride, const Meanwhile& meanwhile) {
  const ScoreTag d;
  ScoreVec sums[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  const auto multiply = [&](size_t begin, size_t end) {
    for (size_t dim = begin; dim < end; ++dim) {
      ScoreVec k[kVectors];
      for (size_t v = 0; v < kVectors; ++v) k[v] = LoadWide(keys.vectors[v] + dim * keys.stride);
      for (size_t r = 0; r < kRows; ++r) {
        const ScoreVec q_r = hn::Set(d, q[dim * kRows + r]);
        for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(q_r, k[v], sums[r][v]);
      }
    }
  };
  if constexpr (kStreams) {
    const size_t step = (head_dim + kVectors - 1) / kVectors;
    for (size_t v = 0; v < kVectors; ++v) {
      multiply(std::min(v * step, head_dim), std::min((v + 1) * step, head_dim));
      meanwhile(v);
    }
  } else {
    multiply(0, head_dim);
  }
  if (keys.scales != nullptr) {
    for (size_t v = 0; v < kVectors; ++v) {
      const ScoreVec scale = hn::LoadU(d, keys.scales[v]);
      for (size_t r = 0; r < kRows; ++r) sums[r][v] = hn::Mul(sums[r][v], scale);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, out + r * out_stride + v * kScoreLanes);
    }
  }
}

// Replaces `count` scores of a row by f(scores) and passes each new vector to `collect`. Sets the
// scores in [count, capacity) to `padding`, regardless of their old value.
template <class F, class Collect>
HWY_INLINE void MapScores(float* scores, size_t count, size_t capacity, float padding, const F& f,
                          const Collect& collect) {
  const ScoreTag d;
  size_t i = 0;
  for (; i + kScoreLanes <= count; i += kScoreLanes) {
    const ScoreVec mapped = f(hn::LoadU(d, scores + i));
    hn::StoreU(mapped, d, scores + i);
    collect(mapped);
  }
  if (i < count) {
    const ScoreVec mapped =
        hn::IfThenElse(hn::FirstN(d, count - i), f(hn::LoadU(d, scores + i)), hn::Set(d, padding));
    hn::StoreU(mapped, d, scores + i);
    collect(mapped);
    i += kScoreLanes;
  }
  for (; i < capacity; i += kScoreLanes) hn::StoreU(hn::Set(d, padding), d, scores + i);
}

// Adds the lanes: i and i + half of the lanes, and so on.
template <class D>
HWY_INLINE float SumHalves([[maybe_unused]] D d, hn::Vec<D> v) {
#if HWY_TARGET == HWY_SCALAR
  return hn::GetLane(v);
#else
  if constexpr (hn::MaxLanes(D()) == 4) {
    v = hn::Add(v, hn::Shuffle1032(v));
    return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
  } else {
    const hn::Half<D> half;
    return SumHalves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
}

// Adds 16 floats in one order on every target: i and i + 8, i and i + 4, and so on.
HWY_INLINE float SumInOrder(const ScoreVec* vectors) {
  ScoreVec sums[kSumVectors];
  for (size_t v = 0; v < kSumVectors; ++v) sums[v] = vectors[v];
  for (size_t half = kSumVectors / 2; half > 0; half /= 2) {
    for (size_t v = 0; v < half; ++v) sums[v] = hn::Add(sums[v], sums[v + half]);
  }
  return SumHalves(ScoreTag(), sums[0]);
}

// True if the target has ToFront.
constexpr bool kHasToFront = HWY_TARGET <= HWY_AVX2;

#if HWY_TARGET == HWY_AVX2
// [mask]: the set ones of 8 lanes, in rising order, 4 bits each.
constexpr std::array<uint32_t, 256> kSetLanes = [] {
  std::array<uint32_t, 256> sets = {};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    int at = 0;
    for (uint32_t lane = 0; lane < 8; ++lane) {
      if (mask >> lane & 1) sets[mask] |= lane << (4 * at++);
    }
  }
  return sets;
}();
#endif

// The lanes of v in the mask, in order, at the front; the others hold anything. (Compilers copy the
// table of Highway 1.0.3's Compress for AVX2 at each use.)
template <class D, class V, class Mask>
HWY_INLINE V ToFront([[maybe_unused]] D d, V v, [[maybe_unused]] Mask mask) {
#if HWY_TARGET == HWY_AVX2
  const hn::RebindToSigned<ScoreTag> d_int;
  const auto bits = unsigned(_mm256_movemask_ps(hn::RebindMask(ScoreTag(), mask).raw));
  const __m256i lanes = _mm256_srlv_epi32(_mm256_set1_epi32(int(kSetLanes[bits])),
                                          _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  v = hn::BitCast(
      d, hn::Vec<decltype(d_int)>{_mm256_permutevar8x32_epi32(hn::BitCast(d_int, v).raw, lanes)});
#elif HWY_TARGET <= HWY_AVX3
  v = hn::Compress(v, mask);
#endif
  return v;
}

// Calls f(lane) for each lane of the mask, in rising order.
template <class Mask, class F>
HWY_INLINE void ForLanes(Mask mask, const F& f) {
  uint8_t bits[8] = {};
  hn::StoreMaskBits(ScoreTag(), mask, bits);
  uint32_t left = 0;
  std::memcpy(&left, bits, sizeof(left));
  for (; left != 0; left &= left - 1) f(size_t(std::countr_zero(left)));
}

// Keys that ExactDots processes together. They lie in one page for every page size.
constexpr int kExactKeys = kMinPageSize;

// dots[i] = <q, key i> in double. keys + dim * stride: kExactKeys elements of one dim. scales: of
// the keys, or null.
template <typename T>
HWY_INLINE void ExactDots(const float* q, size_t head_dim, const T* keys, size_t stride,
                          const float* scales, double* dots) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> d_float;
  constexpr size_t kLanes = hn::MaxLanes(d);
  for (size_t key = 0; key < size_t{kExactKeys}; key += kLanes) {
    auto sum = hn::Zero(d);
    for (size_t dim = 0; dim < head_dim; ++dim) {
      const auto k = hn::PromoteTo(d, LoadWideAs(d_float, keys + dim * stride + key));
      sum = hn::MulAdd(hn::Set(d, double{q[dim]}), k, sum);
    }
    if (scales != nullptr) {
      sum = hn::Mul(sum, hn::PromoteTo(d, hn::LoadU(d_float, scales + key)));
    }
    hn::StoreU(sum, d, dots + key);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
