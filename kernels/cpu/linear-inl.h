// Register tiles of the GEMM. Included once per target, inside foreach_target.h.
//
// A tile is kRows rows of x times one panel of weights. Its sums stay in registers over the whole
// depth K, so the panel is read once and each sum is one multiply-add chain. A large K may be split
// into blocks: storing and reloading sums as fp32 changes no bit.
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

#include "base/check.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/linear_math-inl.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr size_t kLanes = hn::MaxLanes(FloatTag());

// Rows of x in the largest tile. The sums leave registers for two vectors of weights and one
// element of x.
#if HWY_TARGET <= HWY_AVX3
inline constexpr size_t kMaxTileRows = 12;  // 32 registers of 16 lanes
#elif HWY_TARGET == HWY_AVX2
inline constexpr size_t kMaxTileRows = 6;  // 16 registers of 8
#else
inline constexpr size_t kMaxTileRows = 4;
#endif

// Vectors of a panel's columns that a tile computes together. A tile of few rows takes the whole
// panel: it is then read in one pass and has enough independent chains to hide the latency of
// multiply-adds.
constexpr size_t VectorsOfTile(size_t num_rows) {
  constexpr size_t kWhole = size_t{kPanelN} / kLanes;
  if (kWhole <= 2) return kWhole;
  return num_rows <= 3 && kWhole == 4 ? 4 : 2;
}

// kLanes adjacent elements as floats.
template <typename T>
HWY_INLINE FloatVec LoadWeights(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::Load(FloatTag(), from);
  } else {
    return hn::PromoteTo(FloatTag(), hn::Load(hn::Rebind<T, FloatTag>(), from));
  }
}

// Prefetch distance of streamed weights. On one core, 4 rows and 3.5 MB of fp16 take 173 us at 2
// KiB, 149 at 4, 130 at 8, and no less above 8.
inline constexpr size_t kPrefetchBytes = 8192;

// Memory to prefetch during a tile: `bytes_per_k` bytes, at most 128, for each k, so that memory
// reads overlap with arithmetic.
struct PrefetchStream {
  const std::byte* from;
  size_t bytes_per_k;
};

// sums[row][column] += x[k][row] * w[k][column] over k in rising order.
// Shapes    weights T [depth, kPanelN]; x float [depth, kRows]; sums [kRows, kPanelN]
// Requires  weights and sums are 64-byte aligned. `resume` false: sums start at zero
template <typename T, size_t kRows>
HWY_NOINLINE void MultiplyTile(const void* weights, const void* x, size_t depth, bool resume,
                               PrefetchStream prefetch, float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = VectorsOfTile(kRows);
  const FloatTag d;
  for (size_t column = 0; column < kPanelN; column += kVectors * kLanes) {
    FloatVec sum[kRows][kVectors];
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        float* from = sums + r * kPanelN + column + v * kLanes;
        sum[r][v] = resume ? hn::Load(d, from) : hn::Zero(d);
      }
    }
    const T* HWY_RESTRICT w = static_cast<const T*>(weights) + column;
    const float* HWY_RESTRICT x_k = static_cast<const float*>(x);
    const std::byte* prefetch_k = prefetch.from;
    for (size_t k = 0; k < depth; ++k) {
      hwy::Prefetch(prefetch_k);
      hwy::Prefetch(prefetch_k + prefetch.bytes_per_k / 2);
      FloatVec w_k[kVectors];
      for (size_t v = 0; v < kVectors; ++v) w_k[v] = LoadWeights(w + v * kLanes);
      for (size_t r = 0; r < kRows; ++r) {
        const FloatVec x_kr = hn::Set(d, x_k[r]);
        for (size_t v = 0; v < kVectors; ++v) {
          sum[r][v] = FusedMulAdd(d, w_k[v], x_kr, sum[r][v]);
        }
      }
      w += kPanelN;
      x_k += kRows;
      prefetch_k += prefetch.bytes_per_k;
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        hn::Store(sum[r][v], d, sums + r * kPanelN + column + v * kLanes);
      }
    }
  }
}

// Shapes  those of MultiplyTile, MultiplyPairsTile and MultiplyQuadsTile
using TileFunction = void (*)(const void* weights, const void* x, size_t depth, bool resume,
                              PrefetchStream prefetch, float* sums);
using TileFunctions = std::array<TileFunction, kMaxTileRows + 1>;

// to[k][row] = rows[row][k]. A Word is a float, a pair of int16, or a quad.
template <typename Word, size_t kRows>
HWY_NOINLINE void InterleaveRows(const Word* const* rows, size_t depth, Word* HWY_RESTRICT to) {
  const Word* from[kRows];
  for (size_t r = 0; r < kRows; ++r) from[r] = rows[r];
  for (size_t k = 0; k < depth; ++k) {
    for (size_t r = 0; r < kRows; ++r) to[r] = from[r][k];
    to += kRows;
  }
}

template <typename T, size_t... kRowsMinus1>
constexpr TileFunctions MakeTileFunctions(std::index_sequence<kRowsMinus1...>) {
  return {nullptr, &MultiplyTile<T, kRowsMinus1 + 1>...};
}

// By number of rows; [0] is unused.
template <typename T>
inline constexpr TileFunctions kTileFunctions =
    MakeTileFunctions<T>(std::make_index_sequence<kMaxTileRows>());

template <typename Word>
using InterleaveFunction = void (*)(const Word* const* rows, size_t depth, Word* to);
template <typename Word>
using InterleaveFunctions = std::array<InterleaveFunction<Word>, kMaxTileRows + 1>;

template <typename Word, size_t... kRowsMinus1>
constexpr InterleaveFunctions<Word> MakeInterleaveFunctions(std::index_sequence<kRowsMinus1...>) {
  return {nullptr, &InterleaveRows<Word, kRowsMinus1 + 1>...};
}

// By number of rows; [0] is unused.
template <typename Word>
inline constexpr InterleaveFunctions<Word> kInterleaveFunctions =
    MakeInterleaveFunctions<Word>(std::make_index_sequence<kMaxTileRows>());

// out [depth, kPanelN] = the weights as fp32.
template <typename T>
HWY_NOINLINE void WidenPanel(const void* weights, size_t depth, void* out) {
  const T* from = static_cast<const T*>(weights);
  float* HWY_RESTRICT to = static_cast<float*>(out);
  for (size_t i = 0; i < depth * kPanelN; i += kLanes) {
    hn::Store(LoadWeights(from + i), FloatTag(), to + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
