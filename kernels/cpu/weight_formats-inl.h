// The weight formats of the GEMM: the tile functions of int8 and int4, and the table of all
// formats.
//
// int8, int4: x is rounded to 16 bits with one power of two per row. Products and their sums over a
// group are exact integers. The sums of the groups, times their scales, are one multiply-add chain.
// One instruction multiplies two k, where fp32 needs two multiply-adds. Three functions multiply
// int4; their integers, and so their bits, are the same. Included once per target, inside
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
// whose largest to[k] would exceed 32512 has twice the scale, so that both bytes of to[k] are
// signed (ToQuads).
// Shapes    x [depth]; to [depth rounded up to 16], zero past depth
// Ensures   |x[k] - to[k] * scale| <= max|x| * 2^-15 (for_quads: 1.008 times that) + 2^-127; the
//           same bits on every instruction set
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
HWY_INLINE IntVec AddProducts(PairVec w, PairVec x, IntVec sum, IntVec& other_sum) {
  return AddPairProducts(IntTag(), w, x, sum, other_sum);
}
HWY_INLINE IntVec WholeSum(IntVec sum, IntVec other_sum) {
  return hn::RearrangeToOddPlusEven(sum, other_sum);
}
#endif

// sums[row][column] += the sums of a group times its scales, for the columns of a tile.
// Requires  `has_sums` false: sums start at zero
template <size_t kRows, size_t kVectors>
HWY_INLINE void AddGroupSums(const std::byte* group, size_t column, bool has_sums,
                             const IntVec (&sum)[kRows][kVectors],
                             const IntVec (&other_sum)[kRows][kVectors], float* HWY_RESTRICT sums) {
  const FloatTag d;
  const auto* scales = reinterpret_cast<const hwy::bfloat16_t*>(group) + column;
  ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
    const hn::Rebind<hwy::bfloat16_t, FloatTag> d_scale;
    const FloatVec scale = hn::PromoteTo(d, hn::Load(d_scale, scales + v * kLanes));
    ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
      float* to = sums + r * kPanelN + column + v * kLanes;
      const FloatVec of_group = hn::ConvertTo(d, WholeSum(sum[r][v], other_sum[r][v]));
      const FloatVec before = has_sums ? hn::Load(d, to) : hn::Zero(d);
      hn::Store(FusedMulAdd(d, of_group, scale, before), d, to);
    });
  });
}

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
      ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
        ForEachIndex<kVectors>(
            [&](auto v) LSSAR_INLINE_LAMBDA { sum[r][v] = other_sum[r][v] = hn::Zero(d_int); });
      });
      for (size_t pair = 0; pair < num_pairs; ++pair) {
        hwy::Prefetch(prefetch_k);
        hwy::Prefetch(prefetch_k + prefetch.bytes_per_k);
        PairVec w_k[kVectors];
        ForEachIndex<kVectors>([&](auto v)
                                   LSSAR_INLINE_LAMBDA { w_k[v] = LoadPairs(w + 2 * v * kLanes); });
        ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
          const PairVec x_kr = SetPair(x_k + 2 * r);
          ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
            sum[r][v] = AddProducts(w_k[v], x_kr, sum[r][v], other_sum[r][v]);
          });
        });
        w += 2 * kPanelN;
        x_k += 2 * kRows;
        prefetch_k += 2 * prefetch.bytes_per_k;
      }
      AddGroupSums(group, column, has_sums, sum, other_sum, sums);
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

// Widens int4 to the groups of MultiplyPairsTile: scales, then [pairs of k][kPanelN][2] int16. A
// last block of fewer than 8 k is widened whole.
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

#if HWY_TARGET == HWY_SCALAR
inline constexpr TileFunctions kInt4TileFunctions = {};  // reads widened weights
#else

// The k 0, 1 and the k 2, 3 of a quad of looked-up values (packed_matrix.h), as pairs.
HWY_INLINE PairVec EvenBytes(PairVec quad) { return hn::ShiftRight<8>(hn::ShiftLeft<8>(quad)); }
HWY_INLINE PairVec OddBytes(PairVec quad) { return hn::ShiftRight<8>(quad); }

// Adds the products of a pair of k.
// Shapes  x_k int16 [kRows][2]
template <size_t kRows, size_t kVectors>
HWY_INLINE void AddPair(const PairVec (&w)[kVectors], const int16_t* HWY_RESTRICT x_k,
                        IntVec (&sum)[kRows][kVectors], IntVec (&other_sum)[kRows][kVectors]) {
  ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
    const PairVec x_kr = SetPair(x_k + 2 * r);
    ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
      sum[r][v] = AddProducts(w[v], x_kr, sum[r][v], other_sum[r][v]);
    });
  });
}

// MultiplyPairsTile of int4 as stored: a few rows do not repay a store of widened weights.
// Shapes    weights: a panel; x int16 [pairs of k, in whole blocks of 8][kRows][2]; sums [kRows,
//           kPanelN]
// Requires  weights and sums are 64-byte aligned; `resume` is false
template <size_t kRows>
HWY_NOINLINE void MultiplyInt4Tile(const void* weights, const void* x, size_t depth, bool,
                                   PrefetchStream prefetch, float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = VectorsOfTile(kRows);
  const FloatTag d;
  const IntTag d_int;
  const PairTag d_pair;
  const hn::Repartition<uint8_t, PairTag> d_byte;
  const hn::Repartition<uint16_t, PairTag> d_code;
  using ByteVec = hn::Vec<decltype(d_byte)>;
  const ByteVec values =
      hn::LoadDup128(d_byte, reinterpret_cast<const uint8_t*>(kInt4Values.data()));
  const ByteVec low_half = hn::Set(d_byte, 15);
  for (size_t column = 0; column < kPanelN; column += kVectors * kLanes) {
    const std::byte* group = static_cast<const std::byte*>(weights);
    const int16_t* HWY_RESTRICT x_k = static_cast<const int16_t*>(x);
    const std::byte* ahead = prefetch.from;
    for (size_t k = 0; k < depth; k += kInt4GroupCols) {
      IntVec sum[kRows][kVectors], other_sum[kRows][kVectors];
      ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
        ForEachIndex<kVectors>(
            [&](auto v) LSSAR_INLINE_LAMBDA { sum[r][v] = other_sum[r][v] = hn::Zero(d_int); });
      });
      const auto* w = reinterpret_cast<const uint8_t*>(group + kGroupScaleBytes);
      const size_t num_ks = HWY_MIN(size_t{kInt4GroupCols}, depth - k);
      for (size_t block = 0; block < num_ks; block += kInt4BlockCols) {
        hwy::Prefetch(ahead);
        hwy::Prefetch(ahead + 64);
        ahead += kInt4BlockBytes;
        PairVec low[kVectors], high[kVectors], pair[kVectors];
        ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
          const ByteVec codes = hn::Load(d_byte, w + 4 * (column + v * kLanes));
          const ByteVec shifted =
              hn::BitCast(d_byte, hn::ShiftRight<4>(hn::BitCast(d_code, codes)));
          low[v] = hn::BitCast(d_pair, hn::TableLookupBytes(values, hn::And(codes, low_half)));
          high[v] = hn::BitCast(d_pair, hn::TableLookupBytes(values, hn::And(shifted, low_half)));
        });
        ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA { pair[v] = EvenBytes(low[v]); });
        AddPair(pair, x_k, sum, other_sum);
        ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA { pair[v] = OddBytes(low[v]); });
        AddPair(pair, x_k + 2 * kRows, sum, other_sum);
        ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA { pair[v] = EvenBytes(high[v]); });
        AddPair(pair, x_k + 4 * kRows, sum, other_sum);
        ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA { pair[v] = OddBytes(high[v]); });
        AddPair(pair, x_k + 6 * kRows, sum, other_sum);
        w += kInt4BlockBytes;
        x_k += 8 * kRows;
      }
      hwy::Prefetch(ahead);
      ahead += kGroupScaleBytes;
      AddGroupSums(group, column, k > 0, sum, other_sum, sums);
      group = reinterpret_cast<const std::byte*>(w);
    }
  }
}

template <size_t... kRowsMinus1>
constexpr TileFunctions MakeInt4TileFunctions(std::index_sequence<kRowsMinus1...>) {
  return {nullptr, &MultiplyInt4Tile<kRowsMinus1 + 1>...};
}

// By number of rows; [0] is unused.
inline constexpr TileFunctions kInt4TileFunctions =
    MakeInt4TileFunctions(std::make_index_sequence<kMaxTileRows>());
#endif

// ---- int4 as quads of k

// For one or two rows, whose speed is that of reading weights. One instruction multiplies 4 k: x is
// split into a high and a low byte. It needs unsigned weights, so they are 128 larger, and the sums
// start at -128 times the sum of x.

// What a row of x has: quads, and groups with an offset of -128 times the sum of x.
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

// Rows of the largest tile. With 4 rows both are as fast; with more, pairs need fewer registers.
inline constexpr size_t kMaxQuadRows = 2;

// In place: 4 x of 16 bits become 4 signed high bytes, then 4 signed low bytes; each in the order
// of k of a block's bytes (packed_matrix.h): 0, 2, 1, 3. x = 256 high + low.
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

using ByteVec = hn::Vec<hn::Repartition<uint8_t, FloatTag>>;

// Sums over a group of k, of one vector of columns: 256 high + low.
template <size_t kRows>
struct QuadSums {
  IntVec high[kRows], low[kRows];
};

// Shapes  offsets [kRows]
template <size_t kRows>
HWY_INLINE void StartSums(const int32_t* HWY_RESTRICT offsets, QuadSums<kRows>& sums) {
  const IntTag d_int;
  for (size_t r = 0; r < kRows; ++r) {
    sums.high[r] = hn::Zero(d_int);
    sums.low[r] = hn::Set(d_int, offsets[r]);
  }
}

// Adds the products of a quad of k.
// Shapes  x_quad int32 [kRows][2]: high bytes, low bytes
template <size_t kRows>
HWY_INLINE void AddQuad(ByteVec w, const int32_t* HWY_RESTRICT x_quad, QuadSums<kRows>& sums) {
  const IntTag d_int;
  for (size_t r = 0; r < kRows; ++r) {
    sums.high[r] = AddByteProducts(sums.high[r], w, hn::Set(d_int, x_quad[2 * r]));
    sums.low[r] = AddByteProducts(sums.low[r], w, hn::Set(d_int, x_quad[2 * r + 1]));
  }
}

// to[row][lane] += the group's sums times its scales.
template <size_t kRows>
HWY_INLINE void AddGroup(const std::byte* group, size_t column, bool has_sums,
                         const QuadSums<kRows>& of_group, float* HWY_RESTRICT to) {
  const FloatTag d;
  const hn::Rebind<hwy::bfloat16_t, FloatTag> d_scale;
  const auto* scales = reinterpret_cast<const hwy::bfloat16_t*>(group) + column;
  const FloatVec scale = hn::PromoteTo(d, hn::Load(d_scale, scales));
  for (size_t r = 0; r < kRows; ++r) {
    float* row = to + r * kPanelN + column;
    const IntVec sum = hn::Add(hn::ShiftLeft<8>(of_group.high[r]), of_group.low[r]);
    const FloatVec before = has_sums ? hn::Load(d, row) : hn::Zero(d);
    hn::Store(FusedMulAdd(d, hn::ConvertTo(d, sum), scale, before), d, row);
  }
}

// sums[row][column] = sum over k of x[k][row] * w[k][column]. The two vectors of columns have names
// instead of an array: GCC 12 left arrays in memory.
// Shapes    weights: a panel; x int32 [quads][kRows][2], then [groups][kRows]; sums [kRows,
//           kPanelN]
// Requires  weights and sums are 64-byte aligned; `resume` is false; `prefetch` is ahead in the
//           same panels
template <size_t kRows>
HWY_NOINLINE void MultiplyQuadsTile(const void* weights, const void* x, size_t depth, bool,
                                    PrefetchStream prefetch, float* HWY_RESTRICT sums) {
  static_assert(kPanelN == 2 * kLanes);
  const hn::Repartition<uint8_t, FloatTag> d_byte;
  const hn::Repartition<uint16_t, FloatTag> d_code;
  const ByteVec values =
      hn::Xor(hn::LoadDup128(d_byte, reinterpret_cast<const uint8_t*>(kInt4Values.data())),
              hn::Set(d_byte, 128));  // 128 larger
  const ByteVec low_half = hn::Set(d_byte, 15);
  const auto low_codes = [&](ByteVec codes) {
    return hn::TableLookupBytes(values, hn::And(codes, low_half));
  };
  const auto high_codes = [&](ByteVec codes) {
    const auto shifted = hn::ShiftRight<4>(hn::BitCast(d_code, codes));
    return hn::TableLookupBytes(values, hn::And(hn::BitCast(d_byte, shifted), low_half));
  };
  const auto* group = static_cast<const std::byte*>(weights);
  const std::byte* ahead = prefetch.from;
  const int32_t* HWY_RESTRICT x_quad = static_cast<const int32_t*>(x);
  const int32_t* HWY_RESTRICT offsets = x_quad + NumQuads(depth) * kRows * 2;
  for (size_t k = 0; k < depth; k += kInt4GroupCols) {
    QuadSums<kRows> left, right;
    StartSums(offsets, left);
    StartSums(offsets, right);
    offsets += kRows;
    const auto* w = reinterpret_cast<const uint8_t*>(group + kGroupScaleBytes);
    const size_t num_ks = HWY_MIN(size_t{kInt4GroupCols}, depth - k);
    for (size_t block = 0; block < num_ks; block += kInt4BlockCols) {
      hwy::Prefetch(ahead);
      hwy::Prefetch(ahead + 64);
      ahead += kInt4BlockBytes;
      const ByteVec left_codes = hn::Load(d_byte, w);
      const ByteVec right_codes = hn::Load(d_byte, w + 64);
      w += kInt4BlockBytes;
      AddQuad(low_codes(left_codes), x_quad, left);
      AddQuad(low_codes(right_codes), x_quad, right);
      x_quad += 2 * kRows;
      AddQuad(high_codes(left_codes), x_quad, left);
      AddQuad(high_codes(right_codes), x_quad, right);
      x_quad += 2 * kRows;
    }
    hwy::Prefetch(ahead);
    ahead += kGroupScaleBytes;
    AddGroup(group, 0, k > 0, left, sums);
    AddGroup(group, kLanes, k > 0, right, sums);
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

#else
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
  // For one tile, from weights as stored. A null entry: that many rows take the next one, or read
  // widened weights in blocks.
  const TileFunctions* quad_tiles;  // x: kQuads
  const TileFunctions* tiles;
  // Widens a block to fp32, or to int16 and scales. Null: blocks read the stored weights.
  void (*widen)(const void* weights, size_t depth, void* out);
  const TileFunctions* block_tiles;
  XLayout x;              // of `tiles` and `block_tiles`
  size_t depth_multiple;  // a row of x is padded to a multiple
};

HWY_INLINE WeightFormat FormatOf(DType stored) {
  constexpr const TileFunctions* kFloat = &kTileFunctions<float>;
  constexpr const TileFunctions* kInt8 = &kPairsTileFunctions<int8_t, kGroupCols>;
  static constexpr TileFunctions kNone = {};
  switch (stored) {
    case DType::kF32: return {&kNone, kFloat, nullptr, kFloat, XLayout::kFloats, 1};
    case DType::kF16:
      return {&kNone,
              &kTileFunctions<hwy::float16_t>,
              &WidenPanel<hwy::float16_t>,
              kFloat,
              XLayout::kFloats,
              1};
    case DType::kBF16:
      return {&kNone,
              &kTileFunctions<hwy::bfloat16_t>,
              &WidenPanel<hwy::bfloat16_t>,
              kFloat,
              XLayout::kFloats,
              1};
    case DType::kI8: return {&kNone, kInt8, nullptr, kInt8, XLayout::kPairs, 2};
    case DType::kI4:
      return {&kQuadsTileFunctions, &kInt4TileFunctions,
              &WidenInt4,           &kPairsTileFunctions<int16_t, kInt4GroupCols>,
              XLayout::kPairs,      kInt4BlockCols};
    case DType::kFx16: break;  // no type of weights
  }
  LSSAR_CHECK(false);
}

}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
