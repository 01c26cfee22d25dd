// Register tiles of the matrix kernel. Included once per target, inside foreach_target.h.
//
// A tile is kRows rows of x times one panel of weights. Its sums stay in registers over all of k,
// so the panel streams by once and each sum is one multiply-add chain. A long k may be cut: sums
// stored and loaded again as fp32 lose no bit.
#if defined(LSSAR_KERNELS_CPU_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_LINEAR_INL_H_
#undef LSSAR_KERNELS_CPU_LINEAR_INL_H_
#else
#define LSSAR_KERNELS_CPU_LINEAR_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/cpu/linear_math-inl.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr size_t kLanes = hn::MaxLanes(FloatTag());

// Rows of x in the largest tile: as many as leave registers for two vectors of weights and one
// element of x beside the sums.
#if HWY_TARGET <= HWY_AVX3
inline constexpr size_t kMaxTileRows = 12;  // 32 registers of 16 lanes
#elif HWY_TARGET == HWY_AVX2
inline constexpr size_t kMaxTileRows = 6;  // 16 registers of 8
#else
inline constexpr size_t kMaxTileRows = 4;
#endif

// Vectors of a panel's columns that a tile handles at once. Few rows take the whole panel, which
// then comes from memory in one pass and brings enough independent chains to hide their latency.
constexpr size_t VectorsOfTile(size_t num_rows) {
  constexpr size_t kWhole = size_t{kPanelRows} / kLanes;
  if (kWhole <= 2) return kWhole;
  return num_rows <= 3 && kWhole == 4 ? 4 : 2;
}

// A weight format: what scales each group of steps starts with, if any, and how kLanes adjacent
// elements become floats. A float type is one group from end to end.
template <typename T>
struct FloatWeights {
  using Element = T;
  struct Scale {};
  static constexpr size_t kGroupSteps = SIZE_MAX;
  static constexpr size_t kScaleBytes = 0;
  static HWY_INLINE Scale LoadScale(const std::byte*, size_t) { return {}; }
  static HWY_INLINE FloatVec Load(const Element* from, Scale) {
    if constexpr (std::is_same_v<T, float>) {
      return hn::Load(FloatTag(), from);
    } else {
      return hn::PromoteTo(FloatTag(), hn::Load(hn::Rebind<Element, FloatTag>(), from));
    }
  }
};

// Exact: 7 bits of the element times 8 of the scale.
struct Int8Weights {
  using Element = int8_t;
  using Scale = FloatVec;
  static constexpr size_t kGroupSteps = kGroupCols;
  static constexpr size_t kScaleBytes = kGroupScaleBytes;
  static HWY_INLINE Scale LoadScale(const std::byte* group, size_t column) {
    const auto* scales = reinterpret_cast<const hwy::bfloat16_t*>(group) + column;
    return hn::PromoteTo(FloatTag(), hn::Load(hn::Rebind<hwy::bfloat16_t, FloatTag>(), scales));
  }
  static HWY_INLINE FloatVec Load(const Element* from, Scale scale) {
    const hn::RebindToSigned<FloatTag> d_int;
    const auto element = hn::PromoteTo(d_int, hn::Load(hn::Rebind<Element, FloatTag>(), from));
    return hn::Mul(hn::ConvertTo(FloatTag(), element), scale);
  }
};

using F32Weights = FloatWeights<float>;

// How far ahead of its use a line of streamed weights is asked for. One core's reads took 173 us at
// 2 KiB, 149 at 4, 130 at 8 and no less beyond (4 rows, 3.5 MB of fp16).
inline constexpr size_t kPrefetchBytes = 8192;

// Memory that is wanted soon: `step_bytes` of it, at most 128, are asked for at each step of k, so
// that memory works while the multipliers do.
struct Upcoming {
  const std::byte* from;
  size_t step_bytes;
};

// sums[row][column] += x[k][row] * w[k][column] over k in rising order.
// Shapes    weights [num_k, kPanelRows], a panel from the start of a group on; x [num_k, kRows];
//           sums [kRows, kPanelRows]
// Requires  weights and sums 64-byte aligned. `resume` false: sums start at zero
template <class Weights, size_t kRows>
HWY_NOINLINE void MultiplyTile(const void* weights, const float* HWY_RESTRICT x, size_t num_k,
                               bool resume, Upcoming upcoming, float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = VectorsOfTile(kRows);
  const FloatTag d;
  for (size_t column = 0; column < kPanelRows; column += kVectors * kLanes) {
    FloatVec sum[kRows][kVectors];
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        float* from = sums + r * kPanelRows + column + v * kLanes;
        sum[r][v] = resume ? hn::Load(d, from) : hn::Zero(d);
      }
    }
    const std::byte* group = static_cast<const std::byte*>(weights);
    const float* HWY_RESTRICT x_k = x;
    const std::byte* upcoming_k = upcoming.from;
    for (size_t k = 0; k < num_k;) {
      typename Weights::Scale scale[kVectors];
      for (size_t v = 0; v < kVectors; ++v) {
        scale[v] = Weights::LoadScale(group, column + v * kLanes);
      }
      const auto* HWY_RESTRICT w =
          reinterpret_cast<const typename Weights::Element*>(group + Weights::kScaleBytes);
      const size_t group_end = k + HWY_MIN(Weights::kGroupSteps, num_k - k);
      for (; k < group_end; ++k) {
        hwy::Prefetch(upcoming_k);
        hwy::Prefetch(upcoming_k + upcoming.step_bytes / 2);
        FloatVec w_k[kVectors];
        for (size_t v = 0; v < kVectors; ++v) {
          w_k[v] = Weights::Load(w + column + v * kLanes, scale[v]);
        }
        for (size_t r = 0; r < kRows; ++r) {
          const FloatVec x_kr = hn::Set(d, x_k[r]);
          for (size_t v = 0; v < kVectors; ++v) {
            sum[r][v] = FusedMulAdd(d, w_k[v], x_kr, sum[r][v]);
          }
        }
        w += kPanelRows;
        x_k += kRows;
        upcoming_k += upcoming.step_bytes;
      }
      group = reinterpret_cast<const std::byte*>(w);
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        hn::Store(sum[r][v], d, sums + r * kPanelRows + column + v * kLanes);
      }
    }
  }
}

using TileFunction = void (*)(const void* weights, const float* x, size_t num_k, bool resume,
                              Upcoming upcoming, float* sums);
using TileFunctions = std::array<TileFunction, kMaxTileRows + 1>;

// Groups that each of two panels is asked for ahead of its use. One row of 768 x 768: 28.6 GB/s
// with 4, 30.5 with 6, 32.1 with 8 and no more with 12.
inline constexpr size_t kPairGroupsAhead = 8;

// Two adjacent panels of int8 at once, whole: a step of one is half a cache line, which memory
// delivers in less time than a multiply-add takes, and one or two rows would wait for their own
// sums. One row on one core: 29 GB/s a panel at a time, 34 to 37 so.
// Shapes    panels 2 x `panel_bytes`; x [num_k, kRows]; sums [2, kRows, kPanelRows]
// Requires  panels and sums 64-byte aligned
template <size_t kRows>
HWY_NOINLINE void MultiplyPair(const std::byte* panels, size_t panel_bytes,
                               const float* HWY_RESTRICT x, size_t num_k,
                               float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = size_t{kPanelRows} / kLanes;
  constexpr size_t kGroupBytes = kGroupScaleBytes + size_t{kGroupCols} * size_t{kPanelRows};
  const FloatTag d;
  FloatVec sum[2][kRows][kVectors];
  for (size_t p = 0; p < 2; ++p) {
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) sum[p][r][v] = hn::Zero(d);
    }
  }
  const size_t groups_bytes = (num_k + kGroupCols - 1) / kGroupCols * kGroupBytes;
  for (size_t k = 0, offset = 0; k < num_k; k += kGroupCols, offset += kGroupBytes) {
    // Behind the first panel lies the second, which is being read: skip to the next pair. In whole
    // groups, so that none of it is left out.
    const size_t ahead = offset + kPairGroupsAhead * kGroupBytes;
    const std::byte* upcoming =
        panels + (ahead < groups_bytes ? ahead : ahead - groups_bytes + 2 * panel_bytes);
    FloatVec scale[2][kVectors];
    const int8_t* elements[2];
    for (size_t p = 0; p < 2; ++p) {
      const std::byte* group = panels + p * panel_bytes + offset;
      for (size_t v = 0; v < kVectors; ++v) scale[p][v] = Int8Weights::LoadScale(group, v * kLanes);
      elements[p] = reinterpret_cast<const int8_t*>(group + kGroupScaleBytes);
    }
    const size_t num_steps = HWY_MIN(size_t{kGroupCols}, num_k - k);
    const float* HWY_RESTRICT x_k = x + k * kRows;
    for (size_t step = 0; step < num_steps; ++step) {
      hwy::Prefetch(upcoming + step * (kGroupBytes / kGroupCols));
      hwy::Prefetch(upcoming + panel_bytes + step * (kGroupBytes / kGroupCols));
      for (size_t p = 0; p < 2; ++p) {
        for (size_t v = 0; v < kVectors; ++v) {
          const FloatVec w =
              Int8Weights::Load(elements[p] + step * kPanelRows + v * kLanes, scale[p][v]);
          for (size_t r = 0; r < kRows; ++r) {
            sum[p][r][v] = FusedMulAdd(d, w, hn::Set(d, x_k[step * kRows + r]), sum[p][r][v]);
          }
        }
      }
    }
  }
  for (size_t p = 0; p < 2; ++p) {
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        hn::Store(sum[p][r][v], d, sums + (p * kRows + r) * kPanelRows + v * kLanes);
      }
    }
  }
}

using PairFunction = void (*)(const std::byte* panels, size_t panel_bytes, const float* x,
                              size_t num_k, float* sums);

// Null where one panel at a time does as well, or the registers do not hold two.
HWY_INLINE PairFunction PairFunctionOf(DType stored, size_t num_rows) {
  if (stored == DType::kI8 && kLanes >= 8 && num_rows == 1) return &MultiplyPair<1>;
  if (stored == DType::kI8 && kLanes >= 16 && num_rows == 2) return &MultiplyPair<2>;
  return nullptr;
}

// to[k][row] = rows[row][k].
template <size_t kRows>
HWY_NOINLINE void InterleaveRows(const float* const* rows, size_t num_k, float* HWY_RESTRICT to) {
  const float* from[kRows];
  for (size_t r = 0; r < kRows; ++r) from[r] = rows[r];
  for (size_t k = 0; k < num_k; ++k) {
    for (size_t r = 0; r < kRows; ++r) to[r] = from[r][k];
    to += kRows;
  }
}

template <class Weights, size_t... kRowsMinus1>
constexpr TileFunctions MakeTileFunctions(std::index_sequence<kRowsMinus1...>) {
  return {nullptr, &MultiplyTile<Weights, kRowsMinus1 + 1>...};
}

// By number of rows; [0] is unused.
template <class Weights>
inline constexpr TileFunctions kTileFunctions =
    MakeTileFunctions<Weights>(std::make_index_sequence<kMaxTileRows>());

using InterleaveFunction = void (*)(const float* const* rows, size_t num_k, float* to);
using InterleaveFunctions = std::array<InterleaveFunction, kMaxTileRows + 1>;

template <size_t... kRowsMinus1>
constexpr InterleaveFunctions MakeInterleaveFunctions(std::index_sequence<kRowsMinus1...>) {
  return {nullptr, &InterleaveRows<kRowsMinus1 + 1>...};
}

// By number of rows; [0] is unused.
inline constexpr InterleaveFunctions kInterleaveFunctions =
    MakeInterleaveFunctions(std::make_index_sequence<kMaxTileRows>());

// out [num_k, kPanelRows] = the weights as fp32, from the start of a group on.
template <class Weights>
HWY_NOINLINE void WidenPanel(const void* weights, size_t num_k, float* HWY_RESTRICT out) {
  constexpr size_t kVectors = size_t{kPanelRows} / kLanes;
  const std::byte* group = static_cast<const std::byte*>(weights);
  for (size_t k = 0; k < num_k;) {
    typename Weights::Scale scale[kVectors];
    for (size_t v = 0; v < kVectors; ++v) scale[v] = Weights::LoadScale(group, v * kLanes);
    const auto* from =
        reinterpret_cast<const typename Weights::Element*>(group + Weights::kScaleBytes);
    const size_t group_end = k + HWY_MIN(Weights::kGroupSteps, num_k - k);
    for (; k < group_end; ++k) {
      for (size_t v = 0; v < kVectors; ++v) {
        hn::Store(Weights::Load(from + v * kLanes, scale[v]), FloatTag(), out + v * kLanes);
      }
      from += kPanelRows;
      out += kPanelRows;
    }
    group = reinterpret_cast<const std::byte*>(from);
  }
}

// What the product needs to know of a stored type. A new format is a new row here.
struct WeightFormat {
  const TileFunctions* tiles;
  void (*widen)(const void* weights, size_t num_k, float* out);
};

template <class Weights>
WeightFormat FormatOfWeights() {
  return {&kTileFunctions<Weights>, &WidenPanel<Weights>};
}

HWY_INLINE WeightFormat FormatOf(DType stored) {
  switch (stored) {
    case DType::kF32: return {&kTileFunctions<F32Weights>, nullptr};
    case DType::kF16: return FormatOfWeights<FloatWeights<hwy::float16_t>>();
    case DType::kBF16: return FormatOfWeights<FloatWeights<hwy::bfloat16_t>>();
    case DType::kI8: return FormatOfWeights<Int8Weights>();
  }
  LSSAR_CHECK(false);
}

}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
