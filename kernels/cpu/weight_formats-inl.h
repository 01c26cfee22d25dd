// The weight formats of the GEMM: the tile functions of int8, and the table of all formats.
//
// int8: x is rounded to 16 bits with one power of two per row. Products and their sums over a group
// are exact integers. The sums of the groups, times their scales, are one multiply-add chain. One
// instruction multiplies two k, where fp32 needs two multiply-adds. Included once per target,
// inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_WEIGHT_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_WEIGHT_FORMATS_INL_H_
#undef LSSAR_KERNELS_CPU_WEIGHT_FORMATS_INL_H_
#else
#define LSSAR_KERNELS_CPU_WEIGHT_FORMATS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVec = hn::Vec<IntTag>;

// ---- Rows of x as 16-bit integers

// x[k] ~ to[k] * scale, to[k] in [-32767, 32767], to nearest (ties to even). Returns the scale: the
// power of two that puts the largest magnitude into [2^14, 2^15), so rounding is the only error. A
// row with a NaN or an infinity has the scale NaN, and all its results are NaN.
// Shapes    x [depth]; to [depth rounded up to 16], zero past depth
// Ensures   |x[k] - to[k] * scale| <= max|x| * 2^-15 + 2^-127; the same bits on every instruction
//           set
HWY_INLINE float RoundRow(const float* x, size_t depth, int16_t* to) {
  const FloatTag d;
  const IntTag d_int;
  HWY_ALIGN float rest[kLanes] = {};
  const size_t num_whole = depth / kLanes * kLanes;
  if (num_whole < depth) std::memcpy(rest, x + num_whole, (depth - num_whole) * sizeof(float));
  const auto for_each_vector = [&](const auto& visit) {
    for (size_t k = 0; k < num_whole; k += kLanes) visit(k, hn::LoadU(d, x + k));
    if (num_whole < depth) visit(num_whole, hn::Load(d, rest));
  };

  // Magnitudes compare like their bits; infinity and NaN are the largest.
  IntVec largest = hn::Zero(d_int);
  for_each_vector([&](size_t, FloatVec v) {
    largest = hn::Max(largest, hn::And(hn::BitCast(d_int, v), hn::Set(d_int, 0x7FFFFFFF)));
  });
  const int32_t exponent = hn::GetLane(hn::MaxOfLanes(d_int, largest)) >> 23;
  if (exponent == 0xFF) {
    std::fill_n(to, (depth + 15) / 16 * 16, int16_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  // 2^(exponent - 127 - 14) and its inverse, both normal.
  const int32_t scale_exponent = std::max(exponent, 15) - 14;
  const float scale = std::bit_cast<float>(scale_exponent << 23);
  const FloatVec inverse = hn::Set(d, std::bit_cast<float>((254 - scale_exponent) << 23));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  const FloatVec magic = hn::Set(d, 0x1.8p23f);
  for_each_vector([&](size_t k, FloatVec v) {
    const FloatVec shifted = hn::Add(hn::Mul(v, inverse), magic);
    const IntVec steps = hn::Sub(hn::BitCast(d_int, shifted), hn::BitCast(d_int, magic));
    // A value just below 2^15 may round to 32768, which saturates.
    const hn::Rebind<int16_t, IntTag> d_short;
    hn::StoreU(hn::DemoteTo(d_short, steps), d_short, to + k);
  });
  for (size_t k = num_whole + (num_whole < depth ? kLanes : 0); k % 16 != 0; ++k) to[k] = 0;
  return scale;
}

// ---- Pairs of k

// Two k of each of kLanes columns, or two k of one row of x in every lane.
#if HWY_TARGET == HWY_SCALAR
struct PairVec {
  int32_t first, second;
};
HWY_INLINE PairVec LoadPairs(const int8_t* from) { return {from[0], from[1]}; }
HWY_INLINE PairVec SetPair(const int16_t* from) { return {from[0], from[1]}; }
HWY_INLINE IntVec AddProducts(PairVec w, PairVec x, IntVec sum, IntVec&) {
  return hn::Add(sum, hn::Set(IntTag(), w.first * x.first + w.second * x.second));
}
HWY_INLINE IntVec WholeSum(IntVec sum, IntVec) { return sum; }
#else
using PairTag = hn::Repartition<int16_t, FloatTag>;
using PairVec = hn::Vec<PairTag>;
HWY_INLINE PairVec LoadPairs(const int8_t* from) {
  return hn::PromoteTo(PairTag(), hn::Load(hn::Rebind<int8_t, PairTag>(), from));
}
HWY_INLINE PairVec SetPair(const int16_t* from) {
  int32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return hn::BitCast(PairTag(), hn::Set(IntTag(), pair));
}
// The instruction set decides which of the two sums a product is added to.
HWY_INLINE IntVec AddProducts(PairVec w, PairVec x, IntVec sum, IntVec& other_sum) {
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
  // All machines of this target have VNNI, but Highway 1.0.3 compiles it without the flag that the
  // intrinsic requires.
  (void)other_sum;
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));
  return sum;
#else
  return hn::ReorderWidenMulAccumulate(IntTag(), w, x, sum, other_sum);
#endif
}
HWY_INLINE IntVec WholeSum(IntVec sum, IntVec other_sum) {
  return hn::RearrangeToOddPlusEven(sum, other_sum);
}
#endif

// sums[row][column] += sum over k of x[k][row] * w[k][column], for whole groups and possibly a
// shorter last one. The sum of a group is exact: 64 products of 15 and 7 bits.
// Shapes    weights: groups of a panel, each kGroupScaleBytes of scales, then [pairs of k]
//           [kPanelN][2] int8; x int16 [pairs of k][kRows][2]; sums [kRows, kPanelN]
// Requires  weights and sums are 64-byte aligned. `resume` false: sums start at zero
template <size_t kRows>
HWY_NOINLINE void MultiplyInt8Tile(const void* weights, const void* x, size_t depth, bool resume,
                                   PrefetchStream prefetch, float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = VectorsOfTile(kRows);
  const FloatTag d;
  const IntTag d_int;
  for (size_t column = 0; column < kPanelN; column += kVectors * kLanes) {
    const std::byte* group = static_cast<const std::byte*>(weights);
    const int16_t* HWY_RESTRICT x_k = static_cast<const int16_t*>(x);
    const std::byte* prefetch_k = prefetch.from;
    bool has_sums = resume;
    for (size_t k = 0; k < depth; k += kGroupCols) {
      const size_t num_pairs = (HWY_MIN(size_t{kGroupCols}, depth - k) + 1) / 2;
      const int8_t* HWY_RESTRICT w =
          reinterpret_cast<const int8_t*>(group + kGroupScaleBytes) + 2 * column;
      IntVec sum[kRows][kVectors], other_sum[kRows][kVectors];
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t v = 0; v < kVectors; ++v) sum[r][v] = other_sum[r][v] = hn::Zero(d_int);
      }
      for (size_t pair = 0; pair < num_pairs; ++pair) {
        hwy::Prefetch(prefetch_k);
        hwy::Prefetch(prefetch_k + prefetch.bytes_per_k);
        PairVec w_k[kVectors];
        for (size_t v = 0; v < kVectors; ++v) w_k[v] = LoadPairs(w + 2 * v * kLanes);
        for (size_t r = 0; r < kRows; ++r) {
          const PairVec x_kr = SetPair(x_k + 2 * r);
          for (size_t v = 0; v < kVectors; ++v) {
            sum[r][v] = AddProducts(w_k[v], x_kr, sum[r][v], other_sum[r][v]);
          }
        }
        w += 2 * kPanelN;
        x_k += 2 * kRows;
        prefetch_k += 2 * prefetch.bytes_per_k;
      }
      const auto* scales = reinterpret_cast<const hwy::bfloat16_t*>(group) + column;
      for (size_t v = 0; v < kVectors; ++v) {
        const hn::Rebind<hwy::bfloat16_t, FloatTag> d_scale;
        const FloatVec scale = hn::PromoteTo(d, hn::Load(d_scale, scales + v * kLanes));
        for (size_t r = 0; r < kRows; ++r) {
          float* to = sums + r * kPanelN + column + v * kLanes;
          const FloatVec of_group = hn::ConvertTo(d, WholeSum(sum[r][v], other_sum[r][v]));
          const FloatVec before = has_sums ? hn::Load(d, to) : hn::Zero(d);
          hn::Store(FusedMulAdd(d, of_group, scale, before), d, to);
        }
      }
      has_sums = true;
      group += kGroupScaleBytes + num_pairs * 2 * kPanelN;
    }
  }
}

template <size_t... kRowsMinus1>
constexpr TileFunctions MakeInt8TileFunctions(std::index_sequence<kRowsMinus1...>) {
  return {nullptr, &MultiplyInt8Tile<kRowsMinus1 + 1>...};
}

// By number of rows; [0] is unused.
inline constexpr TileFunctions kInt8TileFunctions =
    MakeInt8TileFunctions(std::make_index_sequence<kMaxTileRows>());

// ---- The table

// A stored type, as the GEMM uses it. A new weight format is a new row of FormatOf.
struct WeightFormat {
  const TileFunctions* tiles;  // for the weights as stored
  // Widens a block to fp32 for kTileFunctions<float>. Null: the tiles read the stored weights.
  void (*widen)(const void* weights, size_t depth, float* out);
  bool rounds_x = false;  // x is int16 with one scale per row (RoundRow), not fp32
};

HWY_INLINE WeightFormat FormatOf(DType stored) {
  switch (stored) {
    case DType::kF32: return {&kTileFunctions<float>, nullptr};
    case DType::kF16: return {&kTileFunctions<hwy::float16_t>, &WidenPanel<hwy::float16_t>};
    case DType::kBF16: return {&kTileFunctions<hwy::bfloat16_t>, &WidenPanel<hwy::bfloat16_t>};
    case DType::kI8: return {&kInt8TileFunctions, nullptr, /*rounds_x=*/true};
  }
  LSSAR_CHECK(false);
}

}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
