// The weight formats of the GEMM: the tile functions of int8 and int4, and the table of all formats.
//
// int8, int4: x is rounded to 16 bits with one power of two per row. Products and their sums over a
// group are exact integers. The sums of the groups, times their scales, are one multiply-add chain.
// One instruction multiplies two k, where fp32 needs two multiply-adds. Two functions multiply int4;
// their integers, and so their bits, are the same. Included once per target, inside
// foreach_target.h.
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
// row with a NaN or an infinity has the scale NaN, and all its results are NaN. `for_quads`: a row
// whose largest to[k] would exceed 32512 has twice the scale, so that both bytes of to[k] are signed
// (ToQuads).
// Shapes    x [depth]; to [depth rounded up to 16], zero past depth
// Ensures   |x[k] - to[k] * scale| <= max|x| * 2^-15 (for_quads: 1.008 times that) + 2^-127; the same
//           bits on every instruction set
HWY_INLINE float RoundRow(const float* x, size_t depth, bool for_quads, int16_t* to) {
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
  const int32_t largest_bits = hn::GetLane(hn::MaxOfLanes(d_int, largest));
  if (largest_bits >> 23 == 0xFF) {
    std::fill_n(to, (depth + 15) / 16 * 16, int16_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  // A significand of 2 - 2^-6 or more counts as 2: 32512 = (2 - 2^-6) 2^14.
  const int32_t exponent = (largest_bits + (for_quads ? 1 << 17 : 0)) >> 23;
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
template <typename Element>
HWY_INLINE PairVec LoadPairs(const Element* from) {
  return {from[0], from[1]};
}
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
HWY_INLINE PairVec LoadPairs(const int16_t* from) { return hn::Load(PairTag(), from); }
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
// Shapes    weights: groups of kGroup k of a panel, each kGroupScaleBytes of scales, then [pairs of
//           k][kPanelN][2] elements: int8, or int16 of WidenInt4; x int16 [pairs of k][kRows][2];
//           sums [kRows, kPanelN]
// Requires  weights and sums are 64-byte aligned. `resume` false: sums start at zero
template <typename Element, size_t kGroup, size_t kRows>
HWY_NOINLINE void MultiplyPairsTile(const void* weights, const void* x, size_t depth, bool resume,
                                    PrefetchStream prefetch, float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = VectorsOfTile(kRows);
  const FloatTag d;
  const IntTag d_int;
  for (size_t column = 0; column < kPanelN; column += kVectors * kLanes) {
    const std::byte* group = static_cast<const std::byte*>(weights);
    const int16_t* HWY_RESTRICT x_k = static_cast<const int16_t*>(x);
    const std::byte* prefetch_k = prefetch.from;
    bool has_sums = resume;
    for (size_t k = 0; k < depth; k += kGroup) {
      const size_t num_pairs = (HWY_MIN(kGroup, depth - k) + 1) / 2;
      const Element* HWY_RESTRICT w =
          reinterpret_cast<const Element*>(group + kGroupScaleBytes) + 2 * column;
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
      group += kGroupScaleBytes + num_pairs * 2 * kPanelN * sizeof(Element);
    }
  }
}

template <typename Element, size_t kGroup, size_t... kRowsMinus1>
constexpr TileFunctions MakePairsTileFunctions(std::index_sequence<kRowsMinus1...>) {
  return {nullptr, &MultiplyPairsTile<Element, kGroup, kRowsMinus1 + 1>...};
}

// By number of rows; [0] is unused.
template <typename Element, size_t kGroup>
inline constexpr TileFunctions kPairsTileFunctions =
    MakePairsTileFunctions<Element, kGroup>(std::make_index_sequence<kMaxTileRows>());

// ---- int4 as pairs of k

// Widens int4 to the groups of MultiplyPairsTile: scales, then [pairs of k][kPanelN][2] int16. A last
// block of fewer than 8 k is widened whole.
// Shapes    out [depth rounded up to 8][kPanelN] int16, and the scales
// Requires  out is 64-byte aligned
HWY_NOINLINE void WidenInt4(const void* weights, size_t depth, void* out) {
  constexpr size_t kPairBytes = kPanelN * 2 * sizeof(int16_t);
  const auto* from = static_cast<const std::byte*>(weights);
  auto* to = static_cast<std::byte*>(out);
#if HWY_TARGET != HWY_SCALAR
  const PairTag d;
  const hn::Repartition<uint8_t, PairTag> d_byte;
  const hn::Repartition<uint16_t, PairTag> d_code;
  const auto values = hn::LoadDup128(d_byte, reinterpret_cast<const uint8_t*>(kInt4Values.data()));
  const auto low_half = hn::Set(d_byte, 15);
#endif
  for (size_t k = 0; k < depth; k += kInt4GroupCols) {
    std::memcpy(to, from, kGroupScaleBytes);
    from += kGroupScaleBytes;
    to += kGroupScaleBytes;
    const size_t num_ks = HWY_MIN(size_t{kInt4GroupCols}, depth - k);
    for (size_t block = 0; block < num_ks; block += kInt4BlockCols) {
#if HWY_TARGET == HWY_SCALAR
      for (int j = 0; j < kInt4BlockCols; ++j) {
        auto* pairs = reinterpret_cast<int16_t*>(to + size_t(j / 2) * kPairBytes) + j % 2;
        for (int column = 0; column < kPanelN; ++column) {
          const auto byte = uint8_t(from[Int4Offset(j, column) - kGroupScaleBytes]);
          pairs[2 * column] = kInt4Values[size_t(byte >> Int4Shift(j) & 15)];
        }
      }
#else
      for (size_t column = 0; column < kPanelN; column += kLanes) {
        const auto codes = hn::Load(d_byte, reinterpret_cast<const uint8_t*>(from) + 4 * column);
        const auto low = hn::And(codes, low_half);
        const auto high =
            hn::And(hn::BitCast(d_byte, hn::ShiftRight<4>(hn::BitCast(d_code, codes))), low_half);
        auto* pairs = reinterpret_cast<int16_t*>(to) + 2 * column;
        for (const auto quad : {low, high}) {
          const auto wide = hn::BitCast(d, hn::TableLookupBytes(values, quad));
          hn::Store(hn::ShiftRight<8>(hn::ShiftLeft<8>(wide)), d, pairs);  // bytes 0, 2: k 0, 1
          hn::Store(hn::ShiftRight<8>(wide), d, pairs + 2 * kPanelN);      // bytes 1, 3: k 2, 3
          pairs += 4 * kPanelN;
        }
      }
#endif
      from += kInt4BlockBytes;
      to += kInt4BlockCols / 2 * kPairBytes;
    }
  }
}

// ---- int4 as quads of k

// For few rows, whose speed is that of reading weights. One instruction multiplies 4 k: x is split
// into a high and a low byte. It needs unsigned weights, so they are 128 larger, and the sums start
// at -128 times the sum of x.

// Of a row of x: quads, and groups with an offset of -128 times the sum of x.
constexpr size_t NumQuads(size_t depth) {
  return (depth + kInt4BlockCols - 1) / kInt4BlockCols * 2;
}
constexpr size_t NumQuadGroups(size_t depth) {
  return (depth + kInt4GroupCols - 1) / kInt4GroupCols;
}

#undef LSSAR_HAS_QUADS
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
#define LSSAR_HAS_QUADS 1
#else
#define LSSAR_HAS_QUADS 0
#endif
#if LSSAR_HAS_QUADS

// Rows of the largest tile: two sums for each of 2 vectors, and 7 registers for weights and x.
inline constexpr size_t kMaxQuadRows = 6;

// In place: 4 x of 16 bits become 4 signed high bytes, then 4 signed low bytes; each in the order of
// k of a block's bytes (packed_matrix.h): 0, 2, 1, 3. x = 256 high + low.
// Shapes    x [depth rounded up to 16]
// Requires  |x| <= 32639
HWY_INLINE void ToQuads(int16_t* x, size_t depth) {
  const hn::CappedTag<int16_t, 16> d;
  const hn::Repartition<uint8_t, decltype(d)> d_byte;
  HWY_ALIGN static constexpr uint8_t kBytes[16] = {1, 5,  3,  7,  0, 4,  2,  6,
                                                   9, 13, 11, 15, 8, 12, 10, 14};
  const auto bytes = hn::LoadDup128(d_byte, kBytes);
  for (size_t k = 0; k < depth; k += hn::MaxLanes(d)) {
    const auto v = hn::LoadU(d, x + k);
    // A low byte of 128 or more is negative: the high byte is 1 larger.
    const auto carried = hn::Add(v, hn::And(hn::ShiftLeft<1>(v), hn::Set(d, 256)));
    hn::StoreU(hn::BitCast(d, hn::TableLookupBytes(hn::BitCast(d_byte, carried), bytes)), d, x + k);
  }
}

// sum of 4 products in each lane. Unsigned bytes w, signed bytes x.
HWY_INLINE IntVec AddQuads(IntVec sum, hn::Vec<hn::Repartition<uint8_t, FloatTag>> w, IntVec x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));
  return sum;
}

// sums[row][column] = sum over k of x[k][row] * w[k][column].
// Shapes    weights: a panel; x int32 [quads][kRows][2], then [groups][kRows]; sums [kRows, kPanelN]
// Requires  weights and sums are 64-byte aligned; `resume` is false; `prefetch` is ahead in the same
//           panels
template <size_t kRows>
HWY_NOINLINE void MultiplyQuadsTile(const void* weights, const void* x, size_t depth, bool,
                                    PrefetchStream prefetch, float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = size_t{kPanelN} / kLanes;
  const FloatTag d;
  const IntTag d_int;
  const hn::Repartition<uint8_t, FloatTag> d_byte;
  const hn::Repartition<uint16_t, FloatTag> d_code;
  const auto values =
      hn::Xor(hn::LoadDup128(d_byte, reinterpret_cast<const uint8_t*>(kInt4Values.data())),
              hn::Set(d_byte, 128));  // 128 larger
  const auto low_half = hn::Set(d_byte, 15);
  const auto* group = static_cast<const std::byte*>(weights);
  const std::byte* ahead = prefetch.from;
  const int32_t* HWY_RESTRICT x_quad = static_cast<const int32_t*>(x);
  const int32_t* HWY_RESTRICT offsets = x_quad + NumQuads(depth) * kRows * 2;
  for (size_t k = 0; k < depth; k += kInt4GroupCols) {
    IntVec high[kRows][kVectors], low[kRows][kVectors];
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        high[r][v] = hn::Zero(d_int);
        low[r][v] = hn::Set(d_int, offsets[r]);
      }
    }
    offsets += kRows;
    const auto* w = reinterpret_cast<const uint8_t*>(group + kGroupScaleBytes);
    const size_t num_ks = HWY_MIN(size_t{kInt4GroupCols}, depth - k);
    for (size_t block = 0; block < num_ks; block += kInt4BlockCols) {
      hwy::Prefetch(ahead);
      hwy::Prefetch(ahead + 64);
      ahead += kInt4BlockBytes;
      hn::Vec<decltype(d_byte)> codes[kVectors];
      for (size_t v = 0; v < kVectors; ++v) codes[v] = hn::Load(d_byte, w + 4 * v * kLanes);
      w += kInt4BlockBytes;
      for (size_t half = 0; half < 2; ++half) {
        hn::Vec<decltype(d_byte)> w_k[kVectors];
        for (size_t v = 0; v < kVectors; ++v) {
          w_k[v] = hn::TableLookupBytes(values, hn::And(codes[v], low_half));
          codes[v] = hn::BitCast(d_byte, hn::ShiftRight<4>(hn::BitCast(d_code, codes[v])));
        }
        for (size_t r = 0; r < kRows; ++r) {
          const IntVec x_high = hn::Set(d_int, x_quad[2 * r]);
          const IntVec x_low = hn::Set(d_int, x_quad[2 * r + 1]);
          for (size_t v = 0; v < kVectors; ++v) {
            high[r][v] = AddQuads(high[r][v], w_k[v], x_high);
            low[r][v] = AddQuads(low[r][v], w_k[v], x_low);
          }
        }
        x_quad += 2 * kRows;
      }
    }
    hwy::Prefetch(ahead);
    ahead += kGroupScaleBytes;
    const auto* scales = reinterpret_cast<const hwy::bfloat16_t*>(group);
    for (size_t v = 0; v < kVectors; ++v) {
      const hn::Rebind<hwy::bfloat16_t, FloatTag> d_scale;
      const FloatVec scale = hn::PromoteTo(d, hn::Load(d_scale, scales + v * kLanes));
      for (size_t r = 0; r < kRows; ++r) {
        float* to = sums + r * kPanelN + v * kLanes;
        const FloatVec of_group =
            hn::ConvertTo(d, hn::Add(hn::ShiftLeft<8>(high[r][v]), low[r][v]));
        const FloatVec before = k > 0 ? hn::Load(d, to) : hn::Zero(d);
        hn::Store(FusedMulAdd(d, of_group, scale, before), d, to);
      }
    }
    group = reinterpret_cast<const std::byte*>(w);
  }
}

template <size_t... kRowsMinus1>
constexpr TileFunctions MakeQuadsTileFunctions(std::index_sequence<kRowsMinus1...>) {
  return {nullptr, &MultiplyQuadsTile<kRowsMinus1 + 1>...};
}

// By number of rows; [0] is unused. Null: more rows than kMaxQuadRows.
inline constexpr TileFunctions kQuadsTileFunctions =
    MakeQuadsTileFunctions(std::make_index_sequence<kMaxQuadRows>());

#else  // every number of rows reads pairs
inline constexpr TileFunctions kQuadsTileFunctions = {};
inline void ToQuads(int16_t*, size_t) { LSSAR_CHECK(false); }
#endif

// ---- The table

// x as the tile functions read it.
enum class XLayout : uint8_t {
  kFloats,  // float [tile][k][row of the tile]
  kPairs,   // int16 [tile][pair of k][row of the tile][2]
  kQuads,   // MultiplyQuadsTile
};

// A stored type, as the GEMM uses it. A new weight format is a new row of FormatOf.
struct WeightFormat {
  // For one tile of weights as stored. A null entry: that many rows read widened weights.
  const TileFunctions* tiles;
  XLayout x;  // of `tiles`
  // Widens a block to fp32, or to int16 and scales. Null: all rows read the stored weights.
  void (*widen)(const void* weights, size_t depth, void* out);
  const TileFunctions* widened_tiles;  // for blocks; without `widen`, of stored weights
  XLayout widened_x;
};

HWY_INLINE WeightFormat FormatOf(DType stored) {
  constexpr const TileFunctions* kFloat = &kTileFunctions<float>;
  constexpr const TileFunctions* kInt8 = &kPairsTileFunctions<int8_t, kGroupCols>;
  switch (stored) {
    case DType::kF32: return {kFloat, XLayout::kFloats, nullptr, kFloat, XLayout::kFloats};
    case DType::kF16:
      return {&kTileFunctions<hwy::float16_t>, XLayout::kFloats, &WidenPanel<hwy::float16_t>,
              kFloat, XLayout::kFloats};
    case DType::kBF16:
      return {&kTileFunctions<hwy::bfloat16_t>, XLayout::kFloats, &WidenPanel<hwy::bfloat16_t>,
              kFloat, XLayout::kFloats};
    case DType::kI8: return {kInt8, XLayout::kPairs, nullptr, kInt8, XLayout::kPairs};
    case DType::kI4:
      return {&kQuadsTileFunctions, XLayout::kQuads, &WidenInt4,
              &kPairsTileFunctions<int16_t, kInt4GroupCols>, XLayout::kPairs};
  }
  LSSAR_CHECK(false);
}

}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
