// The matrix kernel's int8 weights: x is rounded to 16 bits with a power of two a row, products
// and their sums over a group are exact integers, and the groups' sums, times their scales, are
// one multiply-add chain. Two steps of k take one instruction where floats take two multiply-adds.
// Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_LINEAR_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_LINEAR_INT8_INL_H_
#undef LSSAR_KERNELS_CPU_LINEAR_INT8_INL_H_
#else
#define LSSAR_KERNELS_CPU_LINEAR_INT8_INL_H_
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
// power of two that puts the largest magnitude into [2^14, 2^15), so that rounding is the only
// error. A row that holds a NaN or an infinity has the scale NaN, and all its products are NaN.
// Shapes    x [width]; to [width rounded up to 16], zero beyond width
// Ensures   |x[k] - to[k] * scale| <= max|x| * 2^-15 + 2^-127; the same bits on every instruction
//           set
HWY_INLINE float RoundRow(const float* x, size_t width, int16_t* to) {
  const FloatTag d;
  const IntTag d_int;
  HWY_ALIGN float rest[kLanes] = {};
  const size_t num_whole = width / kLanes * kLanes;
  if (num_whole < width) std::memcpy(rest, x + num_whole, (width - num_whole) * sizeof(float));
  const auto for_each_vector = [&](const auto& visit) {
    for (size_t k = 0; k < num_whole; k += kLanes) visit(k, hn::LoadU(d, x + k));
    if (num_whole < width) visit(num_whole, hn::Load(d, rest));
  };

  // Magnitudes compare as their bits do, infinity and NaN above all.
  IntVec largest = hn::Zero(d_int);
  for_each_vector([&](size_t, FloatVec v) {
    largest = hn::Max(largest, hn::And(hn::BitCast(d_int, v), hn::Set(d_int, 0x7FFFFFFF)));
  });
  const int32_t exponent = hn::GetLane(hn::MaxOfLanes(d_int, largest)) >> 23;
  if (exponent == 0xFF) {
    std::fill_n(to, (width + 15) / 16 * 16, int16_t{0});
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
    // 32768, which a value just below may become, saturates.
    const hn::Rebind<int16_t, IntTag> d_short;
    hn::StoreU(hn::DemoteTo(d_short, steps), d_short, to + k);
  });
  for (size_t k = num_whole + (num_whole < width ? kLanes : 0); k % 16 != 0; ++k) to[k] = 0;
  return scale;
}

// ---- Products of pairs

// Two steps of k for each of kLanes columns, or of one row of x for all of them.
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
// Which of the two sums a product goes to is the machine's choice.
HWY_INLINE IntVec AddProducts(PairVec w, PairVec x, IntVec sum, IntVec& other_sum) {
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
  // Highway 1.0.3 compiles this target, whose machines all have VNNI, without the flag that its
  // intrinsic asks for.
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

// sums[row][column] += sum over k of x[k][row] * w[k][column], for a whole number of groups and
// perhaps a last, shorter one. A group's sum is exact: 64 products of 15 and 7 bits.
// Shapes    weights: groups of a panel, each kGroupScaleBytes of scales, then [pairs of k]
//           [kPanelRows][2] int8; x int16 [pairs of k][kRows][2]; sums [kRows, kPanelRows]
// Requires  weights and sums 64-byte aligned. `resume` false: sums start at zero
template <size_t kRows>
HWY_NOINLINE void MultiplyInt8Tile(const void* weights, const void* x, size_t num_k, bool resume,
                                   Upcoming upcoming, float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = VectorsOfTile(kRows);
  const FloatTag d;
  const IntTag d_int;
  for (size_t column = 0; column < kPanelRows; column += kVectors * kLanes) {
    const std::byte* group = static_cast<const std::byte*>(weights);
    const int16_t* HWY_RESTRICT x_k = static_cast<const int16_t*>(x);
    const std::byte* upcoming_k = upcoming.from;
    bool has_sums = resume;
    for (size_t k = 0; k < num_k; k += kGroupCols) {
      const size_t num_pairs = (HWY_MIN(size_t{kGroupCols}, num_k - k) + 1) / 2;
      const int8_t* HWY_RESTRICT w =
          reinterpret_cast<const int8_t*>(group + kGroupScaleBytes) + 2 * column;
      IntVec sum[kRows][kVectors], other_sum[kRows][kVectors];
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t v = 0; v < kVectors; ++v) sum[r][v] = other_sum[r][v] = hn::Zero(d_int);
      }
      for (size_t pair = 0; pair < num_pairs; ++pair) {
        hwy::Prefetch(upcoming_k);
        hwy::Prefetch(upcoming_k + upcoming.step_bytes);
        PairVec w_k[kVectors];
        for (size_t v = 0; v < kVectors; ++v) w_k[v] = LoadPairs(w + 2 * v * kLanes);
        for (size_t r = 0; r < kRows; ++r) {
          const PairVec x_kr = SetPair(x_k + 2 * r);
          for (size_t v = 0; v < kVectors; ++v) {
            sum[r][v] = AddProducts(w_k[v], x_kr, sum[r][v], other_sum[r][v]);
          }
        }
        w += 2 * kPanelRows;
        x_k += 2 * kRows;
        upcoming_k += 2 * upcoming.step_bytes;
      }
      const auto* scales = reinterpret_cast<const hwy::bfloat16_t*>(group) + column;
      for (size_t v = 0; v < kVectors; ++v) {
        const hn::Rebind<hwy::bfloat16_t, FloatTag> d_scale;
        const FloatVec scale = hn::PromoteTo(d, hn::Load(d_scale, scales + v * kLanes));
        for (size_t r = 0; r < kRows; ++r) {
          float* to = sums + r * kPanelRows + column + v * kLanes;
          const FloatVec of_group = hn::ConvertTo(d, WholeSum(sum[r][v], other_sum[r][v]));
          const FloatVec before = has_sums ? hn::Load(d, to) : hn::Zero(d);
          hn::Store(FusedMulAdd(d, of_group, scale, before), d, to);
        }
      }
      has_sums = true;
      group += kGroupScaleBytes + num_pairs * 2 * kPanelRows;
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

}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
