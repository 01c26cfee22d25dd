// Score over keys in two planes (fx16; kernels/DESIGN.md, "K in two planes"): integer dot products
// with the high plane, then, for the candidates alone, with the low plane. Included once per
// target, inside foreach_target.h.
//
// A dot product of integers has the same value in any order, so its bits are the same on every
// instruction set. The floats behind it are single operations in one order.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_FIXED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_FIXED_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_FIXED_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_FIXED_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/attention_math.h"
#include "kernels/cpu/attention_dot-inl.h"
#include "kernels/cpu/attention_phi-inl.h"
#include "kernels/cpu/attention_rule-inl.h"
#include "kernels/cpu/attention_values-inl.h"
#include "kernels/cpu/attention_work-inl.h"
#include "kernels/quantize.h"
#include "kernels/two_planes.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

using FixedIntTag = hn::RebindToSigned<ScoreTag>;
using FixedIntVec = hn::Vec<FixedIntTag>;

// Writes the rows of q to scratch in fixed point: task.q [group][dim / 4][row of the group] of four
// dims in 8 bytes, and task.fixed. Four dims are, with kHasByteProducts, 4 high bytes, then 4 low
// bytes; else 4 int16, and planes are widened to 16 bits. Both give the same integer. Padding rows
// are zero.
void FixQueries(const Work<Fx16>& work) {
  const size_t head_dim = work.HeadDim();
  const size_t padded_dim =
      (head_dim + FixedRow::kPadDims - 1) / FixedRow::kPadDims * FixedRow::kPadDims;
  int16_t fixed[kMaxFixedHeadDim + FixedRow::kPadDims] = {};
  for (int row = 0; row < work.item.PaddedRows(); ++row) {
    const int first = row / kGroupRows * kGroupRows;  // of its group
    const size_t group_rows = Size(work.item.GroupRows(first));
    float q_scale = 0;
    double unit = 0;
    int32_t high_norm = 0, sum = 0, high_sum = 0;
    if (row < work.item.num_rows) {
      q_scale = QuantizeFixed({work.args.q + work.VectorIdx(row), head_dim}, fixed);
      unit = double{q_scale} / std::log(2.0) *
             ScaleOf(work.args.spec, work.args.kv.layout.head_dim, work.item.NumKeys(row));
    } else {
      std::fill_n(fixed, head_dim, int16_t{0});
    }
    for (size_t dim = 0; dim < head_dim; ++dim) {
      const int high = (fixed[dim] + 128) >> 8;
      high_norm += std::abs(high);
      high_sum += high;
      sum += fixed[dim];
    }
    auto* head = reinterpret_cast<FixedRow*>(work.FixedAt(row));
    head->high_factor = float(unit * 256);
    head->low_factor = float(unit);
    // 2^-16 more than the largest |<q's high bytes, low>|: more than the rounding errors of the two
    // scores.
    head->bound = float(unit * 256 * 128 * double(high_norm) * (1 + 0x1p-16));
    head->offset = -128 * sum;
    head->low_offset = -128 * high_sum;
    head->q_scale = q_scale;
    auto* q = reinterpret_cast<int8_t*>(work.FixedAt(row) + FixedRow::kHeadFloats);
    if constexpr (kHasByteProducts) {
      for (size_t dim = 0; dim < padded_dim; ++dim) {
        const int high = (fixed[dim] + 128) >> 8;
        q[dim] = int8_t(high);
        q[padded_dim + dim] = int8_t(fixed[dim] - 256 * high);
      }
    } else {
      std::memcpy(q, fixed, padded_dim * sizeof(int16_t));
      auto* high = reinterpret_cast<int16_t*>(q) + padded_dim;
      for (size_t dim = 0; dim < padded_dim; ++dim) high[dim] = int16_t((fixed[dim] + 128) >> 8);
    }
    auto* quads =
        reinterpret_cast<uint64_t*>(work.task.q + Size(first) * (head_dim / 2)) + Size(row - first);
    for (size_t dim = 0; dim < head_dim; dim += 4, quads += group_rows) {
      if constexpr (kHasByteProducts) {
        std::memcpy(quads, q + dim, 4);
        std::memcpy(reinterpret_cast<char*>(quads) + 4, q + padded_dim + dim, 4);
      } else {
        std::memcpy(quads, fixed + dim, sizeof(*quads));
      }
    }
  }
}

// ---- The high plane

// Vectors of keys that kRows rows process together. With AVX-512, up to 3 rows process a whole
// tile: its lines are read in order, as the hardware prefetcher needs.
template <size_t kRows>
constexpr size_t kFixedVectors = HWY_TARGET <= HWY_AVX3 ? (kRows <= 3 ? kTileVectors : 2)
                                 : kRows == 1           ? std::min<size_t>(kTileVectors, 4)
                                                        : 1;

// Dot products of kRows rows with the high plane of kVectors vectors of keys: emit(r, v, integers).
// `quads`: of the rows' first dims; `quad_stride` from dims to the next dims. kStreams, meanwhile:
// as in DotTile.
template <size_t kRows, size_t kVectors, bool kStreams, class Meanwhile, class Emit>
HWY_INLINE void HighDots(const uint64_t* HWY_RESTRICT quads, size_t quad_stride,
                         const std::array<int32_t, kRows>& offsets, size_t head_dim,
                         const uint8_t* const* vectors, size_t stride, const Meanwhile& meanwhile,
                         const Emit& emit) {
  const FixedIntTag d_int;
  const size_t num_quads = head_dim / 4;
#if HWY_TARGET == HWY_SCALAR
  for (size_t v = 0; v < kVectors; ++v) {
    for (size_t r = 0; r < kRows; ++r) {
      int64_t sum = offsets[r];
      for (size_t quad = 0; quad < num_quads; ++quad) {
        int16_t q[4];
        std::memcpy(q, quads + quad * quad_stride + r, sizeof(q));
        for (size_t i = 0; i < 4; ++i) sum += int64_t{q[i]} * vectors[v][quad * stride + i];
      }
      emit(r, v, hn::Set(d_int, int32_t(sum)));
    }
    if constexpr (kStreams) meanwhile(v);
  }
#else
  const hn::Repartition<uint8_t, ScoreTag> d_byte;
  // kHasByteProducts: sums of high and of low bytes of q. Else: of the first and of the last keys
  // of the vector, two partial sums a key.
  FixedIntVec first[kRows][kVectors], second[kRows][kVectors];
  ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
    ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
      first[r][v] = hn::Zero(d_int);
      second[r][v] = kHasByteProducts ? hn::Set(d_int, offsets[r]) : hn::Zero(d_int);
    });
  });
  const auto multiply = [&](size_t begin, size_t end) LSSAR_INLINE_LAMBDA {
    for (size_t quad = begin; quad < end; ++quad) {
      const uint64_t* of_rows = quads + quad * quad_stride;
      if constexpr (kHasByteProducts) {
        const auto* bytes = reinterpret_cast<const int32_t*>(of_rows);
        hn::Vec<decltype(d_byte)> k[kVectors];
        ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
          k[v] = hn::LoadU(d_byte, vectors[v] + quad * stride);
        });
        ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
          const FixedIntVec high = hn::Set(d_int, bytes[2 * r]);
          const FixedIntVec low = hn::Set(d_int, bytes[2 * r + 1]);
          ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
            first[r][v] = AddByteProducts(first[r][v], k[v], high);
            second[r][v] = AddByteProducts(second[r][v], k[v], low);
          });
        });
      } else {
        const hn::Repartition<int16_t, ScoreTag> d_pair;
        const hn::Rebind<uint8_t, decltype(d_pair)> d_half;
        const hn::Repartition<uint64_t, ScoreTag> d_quad;
        ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
          const uint8_t* from = vectors[v] + quad * stride;
          const auto k_first = hn::PromoteTo(d_pair, hn::LoadU(d_half, from));
          const auto k_second =
              hn::PromoteTo(d_pair, hn::LoadU(d_half, from + hn::MaxLanes(d_half)));
          ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
            const auto q = hn::BitCast(d_pair, hn::Set(d_quad, of_rows[r]));
            FixedIntVec rest = hn::Zero(d_int);  // stays zero on x86
            first[r][v] = AddPairProducts(d_int, k_first, q, first[r][v], rest);
            second[r][v] = AddPairProducts(d_int, k_second, q, second[r][v], rest);
          });
        });
      }
    }
  };
  if constexpr (kStreams) {
    const size_t step = (num_quads + kVectors - 1) / kVectors;
    for (size_t v = 0; v < kVectors; ++v) {
      multiply(std::min(v * step, num_quads), std::min((v + 1) * step, num_quads));
      meanwhile(v);
    }
  } else {
    multiply(0, num_quads);
  }
  ForEachIndex<kRows>([&](auto r) LSSAR_INLINE_LAMBDA {
    ForEachIndex<kVectors>([&](auto v) LSSAR_INLINE_LAMBDA {
      if constexpr (kHasByteProducts) {
        emit(r, v, hn::Add(hn::ShiftLeft<8>(first[r][v]), second[r][v]));
      } else {
        const FixedIntVec even = hn::ConcatEven(d_int, second[r][v], first[r][v]);
        const FixedIntVec odd = hn::ConcatOdd(d_int, second[r][v], first[r][v]);
        emit(r, v, hn::Add(hn::Add(even, odd), hn::Set(d_int, offsets[r])));
      }
    });
  });
#endif
}

// The quads of a row's first dims, and the distance to the next dims.
struct QuadRows {
  const uint64_t* first;
  size_t stride;
};
HWY_INLINE QuadRows QuadsOf(const Work<Fx16>& work, int row) {
  const int first = row / kGroupRows * kGroupRows;
  return {reinterpret_cast<const uint64_t*>(work.task.q + Size(first) * (work.HeadDim() / 2)) +
              Size(row - first),
          Size(work.item.GroupRows(first))};
}

// Scores of the high plane: kRows rows from first_row on, kVectors vectors of keys. As DotTile.
template <size_t kRows, size_t kVectors, bool kStreams, class Meanwhile>
HWY_INLINE void FixedTile(const Work<Fx16>& work, int first_row, const KeyTile<uint8_t>& keys,
                          float* HWY_RESTRICT out, const Meanwhile& meanwhile) {
  const ScoreTag d;
  std::array<int32_t, kRows> offsets;
  for (size_t r = 0; r < kRows; ++r) offsets[r] = work.Fixed(first_row + int(r)).offset;
  const QuadRows quads = QuadsOf(work, first_row);
  HighDots<kRows, kVectors, kStreams>(
      quads.first, quads.stride, offsets, work.HeadDim(), keys.vectors, keys.stride, meanwhile,
      [&](size_t r, size_t v, FixedIntVec dots) {
        const ScoreVec scaled = hn::Mul(hn::ConvertTo(d, dots), hn::LoadU(d, keys.scales[v]));
        const float factor = work.Fixed(first_row + int(r)).high_factor;
        hn::StoreU(hn::Mul(scaled, hn::Set(d, factor)), d,
                   out + r * work.values.row_stride + v * kScoreLanes);
      });
}

// ---- The low plane

// Keys whose dot products are computed together: a vector of sums.
constexpr size_t kLowBatch = kScoreLanes;

#if HWY_TARGET != HWY_SCALAR
// Lane i of the result: the sum of the lanes of vectors[i].
HWY_INLINE FixedIntVec SumEach(const FixedIntVec* vectors) {
  const FixedIntTag d;
  const hn::Repartition<int64_t, FixedIntTag> d_pair;
  // In each block of 128 bits: the partial sums of 4 vectors.
  FixedIntVec fours[kLowBatch / 4];
  for (size_t i = 0; i < kLowBatch / 4; ++i) {
    const FixedIntVec* v = vectors + 4 * i;
    const FixedIntVec first =
        hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
    const FixedIntVec second =
        hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
    const auto a = hn::BitCast(d_pair, first), b = hn::BitCast(d_pair, second);
    fours[i] = hn::Add(hn::BitCast(d, hn::InterleaveLower(d_pair, a, b)),
                       hn::BitCast(d, hn::InterleaveUpper(d_pair, a, b)));
  }
  if constexpr (kLowBatch == 4) {
    return fours[0];
  } else if constexpr (kLowBatch == 8) {
    return hn::Add(hn::ConcatLowerLower(d, fours[1], fours[0]),
                   hn::ConcatUpperUpper(d, fours[1], fours[0]));
  } else {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    const auto add_blocks = [](FixedIntVec a, FixedIntVec b) {
      return hn::Add(FixedIntVec{_mm512_shuffle_i32x4(a.raw, b.raw, 0x88)},
                     FixedIntVec{_mm512_shuffle_i32x4(a.raw, b.raw, 0xDD)});
    };
    return add_blocks(add_blocks(fours[0], fours[1]), add_blocks(fours[2], fours[3]));
#else
    return fours[0];  // no such target
#endif
  }
}
#endif

// <q, low> of kLowBatch keys, or, unless kWhole, the dot products of q's high bytes. low(i): the
// low plane of key i.
// Shapes  q as FixedQuery; low(i) [head_dim]
template <bool kWhole, class Low>
HWY_INLINE FixedIntVec LowDots(const FixedRow& row, const int8_t* HWY_RESTRICT q, const Low& low,
                               size_t head_dim) {
  const FixedIntTag d_int;
  const int32_t offset = kWhole ? row.offset : row.low_offset;
  const size_t padded_dim =
      (head_dim + FixedRow::kPadDims - 1) / FixedRow::kPadDims * FixedRow::kPadDims;
  [[maybe_unused]] const auto* q_pairs =
      reinterpret_cast<const int16_t*>(q) + (kWhole ? 0 : padded_dim);
#if HWY_TARGET == HWY_SCALAR
  int64_t sum = offset;
  for (size_t dim = 0; dim < head_dim; ++dim) sum += int64_t{q_pairs[dim]} * low(0)[dim];
  return hn::Set(d_int, int32_t(sum));
#else
  FixedIntVec sums[kLowBatch];
  if constexpr (kHasByteProducts) {
    const hn::Repartition<uint8_t, ScoreTag> d_byte;
    const hn::Repartition<int8_t, ScoreTag> d_signed;
    const auto quad = [&](size_t at) { return hn::BitCast(d_int, hn::LoadU(d_signed, q + at)); };
    if (head_dim <= hn::MaxLanes(d_byte)) {
      const FixedIntVec q_high = quad(0), q_low = quad(padded_dim);
      for (size_t i = 0; i < kLowBatch; ++i) {
        const auto k = hn::LoadU(d_byte, low(i));
        sums[i] = AddByteProducts(hn::Zero(d_int), k, q_high);
        if (kWhole) sums[i] = AddByteProducts(hn::ShiftLeft<8>(sums[i]), k, q_low);
      }
    } else {
      for (size_t i = 0; i < kLowBatch; ++i) {
        const uint8_t* key = low(i);
        FixedIntVec high = hn::Zero(d_int), rest = hn::Zero(d_int);
        for (size_t dim = 0; dim < head_dim; dim += hn::MaxLanes(d_byte)) {
          const auto k = hn::LoadU(d_byte, key + dim);
          high = AddByteProducts(high, k, quad(dim));
          if (kWhole) rest = AddByteProducts(rest, k, quad(padded_dim + dim));
        }
        sums[i] = kWhole ? hn::Add(hn::ShiftLeft<8>(high), rest) : high;
      }
    }
  } else {
    const hn::Repartition<int16_t, ScoreTag> d_pair;
    const hn::Rebind<uint8_t, decltype(d_pair)> d_half;
    for (size_t i = 0; i < kLowBatch; ++i) {
      const uint8_t* key = low(i);
      FixedIntVec sum = hn::Zero(d_int), rest = hn::Zero(d_int);
      for (size_t dim = 0; dim < head_dim; dim += hn::MaxLanes(d_pair)) {
        const auto k = hn::PromoteTo(d_pair, hn::LoadU(d_half, key + dim));
        sum = AddPairProducts(d_int, k, hn::LoadU(d_pair, q_pairs + dim), sum, rest);
      }
      sums[i] = hn::Add(sum, rest);
    }
  }
  return hn::Add(SumEach(sums), hn::Set(d_int, offset));
#endif
}

// Scores with the low plane's part: score + low_dots * scale * factor.
HWY_INLINE ScoreVec WithLow(float factor, ScoreVec score, ScoreVec scale, FixedIntVec low_dots) {
  const ScoreTag d;
  const ScoreVec low = hn::Mul(hn::ConvertTo(d, low_dots), scale);
  return hn::Add(score, hn::Mul(low, hn::Set(d, factor)));
}

// Completes the scores of keys [key, key + count), whole vectors of them.
// Requires  key is a multiple of a vector; they lie in one tile
void AddLow(const Work<Fx16>& work, int row, int key, int count) {
  const ScoreTag d;
  const FixedRow& fixed = work.Fixed(row);
  float* scores = work.values.Scores(row);
  for (int i = key; i < key + count; i += int(kLowBatch)) {
    const uint8_t* first = work.kv.LowKey(i);  // a vector of keys lies in one page
    const size_t stride = work.kv.LowStride();
    const auto low = [&](size_t lane) { return first + lane * stride; };
    const FixedIntVec dots = LowDots<true>(fixed, work.FixedQuery(row), low, work.HeadDim());
    const ScoreVec scale = hn::LoadU(d, work.kv.KeyScales(i));
    hn::StoreU(WithLow(fixed.low_factor, hn::LoadU(d, scores + i), scale, dots), d, scores + i);
  }
}

// Adds the first `count` high parts of a row's scores of a tile, or of some vectors of it, to the
// chunk's stats: the maximum is of the scores' lower bounds. Short rows: `scores` are whole.
HWY_INLINE void AddFixed(const Work<Fx16>& work, int row, const float* HWY_RESTRICT scores,
                         int first_key, size_t first_vector, size_t count, ChunkStats& stats) {
  const ScoreTag d;
  const bool is_short = work.item.NumKeys(row) <= kShortRowKeys;
  const ScoreVec bound = hn::Set(d, is_short ? 0.0f : work.Fixed(row).bound);
  AddBase2(scores, first_vector, count, stats, [&](size_t i, ScoreVec y) {
    return hn::Sub(y, hn::Mul(hn::LoadU(d, work.kv.KeyScales(first_key + int(i))), bound));
  });
}

// ---- Both planes of a tile, for a block of long rows

// True if Score of a block reads the low plane by tiles, for whole groups of rows: the rows share a
// tile, so this costs less than a list of candidates for each row.
HWY_INLINE bool TilesLow(const AttentionItem& item) { return kHasByteProducts && !item.is_decode; }

// True if the row is in a group of long rows whose scores Score computes from both planes.
HWY_INLINE bool HasBothPlanes(const AttentionItem& item, int row) {
  return TilesLow(item) && item.NumKeys(row / kGroupRows * kGroupRows) > kShortRowKeys;
}

// The same of a group of short rows.
HWY_INLINE bool CompletesTile(const AttentionItem& item, int row) {
  return TilesLow(item) &&
         item.NumKeys(row / kGroupRows * kGroupRows + kGroupRows - 1) <= kShortRowKeys;
}

// Writes a tile's low plane in the order of a high plane, [dim / 4][kTileKeys][dim % 4].
// Vectors of keys past the last key repeat the last vector.
void TransposeLow([[maybe_unused]] const Work<Fx16>& work, [[maybe_unused]] int first_key,
                  [[maybe_unused]] uint8_t* tile) {
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
  const FixedIntTag d;
  const hn::Repartition<int64_t, FixedIntTag> d_pair;
  const size_t head_dim = work.HeadDim(), stride = work.kv.LowStride();
  const int last = (work.item.MaxKeys() - 1) / int(kScoreLanes) * int(kScoreLanes);
  for (size_t v = 0; v < kTileVectors; ++v) {
    const uint8_t* keys = work.kv.LowKey(std::min(first_key + int(v * kScoreLanes), last));
    for (size_t dim = 0; dim < head_dim; dim += 64) {
      // Blocks of 128 bits: of part[i][g], the quads i, i + 4, i + 8 and i + 12 of keys 4 g to
      // 4 g + 3.
      FixedIntVec part[4][4];
      for (size_t g = 0; g < 4; ++g) {
        FixedIntVec row[4];
        for (size_t i = 0; i < 4; ++i) {
          row[i] =
              hn::LoadU(d, reinterpret_cast<const int32_t*>(keys + (4 * g + i) * stride + dim));
        }
        const auto pairs = [&](size_t i, bool upper) {
          return hn::BitCast(d_pair, upper ? hn::InterleaveUpper(d, row[i], row[i + 1])
                                           : hn::InterleaveLower(d, row[i], row[i + 1]));
        };
        for (size_t i = 0; i < 2; ++i) {
          const auto a = pairs(0, i == 1), b = pairs(2, i == 1);
          part[2 * i][g] = hn::BitCast(d, hn::InterleaveLower(d_pair, a, b));
          part[2 * i + 1][g] = hn::BitCast(d, hn::InterleaveUpper(d_pair, a, b));
        }
      }
      for (size_t i = 0; i < 4; ++i) {
        const auto& p = part[i];
        const auto a = _mm512_shuffle_i32x4(p[0].raw, p[1].raw, 0x44);
        const auto b = _mm512_shuffle_i32x4(p[0].raw, p[1].raw, 0xEE);
        const auto c = _mm512_shuffle_i32x4(p[2].raw, p[3].raw, 0x44);
        const auto e = _mm512_shuffle_i32x4(p[2].raw, p[3].raw, 0xEE);
        const FixedIntVec quads[4] = {FixedIntVec{_mm512_shuffle_i32x4(a, c, 0x88)},
                                      FixedIntVec{_mm512_shuffle_i32x4(a, c, 0xDD)},
                                      FixedIntVec{_mm512_shuffle_i32x4(b, e, 0x88)},
                                      FixedIntVec{_mm512_shuffle_i32x4(b, e, 0xDD)}};
        for (size_t j = 0; j < 4 && dim + 16 * j + 4 * i < head_dim; ++j) {
          uint8_t* to = tile + (dim + 16 * j + 4 * i) * kTileKeys + v * 64;
          hn::StoreU(quads[j], d, reinterpret_cast<int32_t*>(to));
        }
      }
    }
  }
#endif
}

// Scores of a group of rows, kVectors vectors of keys: from both planes to `out`, their high parts
// to `high`, [row][kTileKeys]. low: of TransposeLow, from the first of these keys on.
template <size_t kVectors>
HWY_INLINE void BothTile([[maybe_unused]] const Work<Fx16>& work, [[maybe_unused]] int first_row,
                         [[maybe_unused]] const KeyTile<uint8_t>& keys,
                         [[maybe_unused]] const uint8_t* HWY_RESTRICT low,
                         [[maybe_unused]] float* HWY_RESTRICT high,
                         [[maybe_unused]] float* HWY_RESTRICT out) {
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
  constexpr size_t kRows = Size(kGroupRows);
  const ScoreTag d;
  const FixedIntTag d_int;
  const hn::Repartition<uint8_t, ScoreTag> d_byte;
  FixedIntVec first[kRows][kVectors], second[kRows][kVectors], third[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    const FixedRow& row = work.Fixed(first_row + int(r));
    for (size_t v = 0; v < kVectors; ++v) {
      first[r][v] = hn::Zero(d_int);
      second[r][v] = hn::Set(d_int, row.offset);
      third[r][v] = hn::Set(d_int, row.low_offset);
    }
  }
  const QuadRows quads = QuadsOf(work, first_row);
  const size_t num_quads = work.HeadDim() / 4;
  for (size_t quad = 0; quad < num_quads; ++quad) {
    const auto* bytes = reinterpret_cast<const int32_t*>(quads.first + quad * quads.stride);
    hn::Vec<decltype(d_byte)> k[kVectors], k_low[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      k[v] = hn::LoadU(d_byte, keys.vectors[v] + quad * keys.stride);
      k_low[v] = hn::LoadU(d_byte, low + quad * 4 * kTileKeys + v * 64);
    }
    for (size_t r = 0; r < kRows; ++r) {
      const FixedIntVec q_high = hn::Set(d_int, bytes[2 * r]);
      const FixedIntVec q_low = hn::Set(d_int, bytes[2 * r + 1]);
      for (size_t v = 0; v < kVectors; ++v) {
        first[r][v] = AddByteProducts(first[r][v], k[v], q_high);
        second[r][v] = AddByteProducts(second[r][v], k[v], q_low);
        third[r][v] = AddByteProducts(third[r][v], k_low[v], q_high);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    const float factor = work.Fixed(first_row + int(r)).high_factor;
    for (size_t v = 0; v < kVectors; ++v) {
      const ScoreVec scale = hn::LoadU(d, keys.scales[v]);
      const FixedIntVec dots = hn::Add(hn::ShiftLeft<8>(first[r][v]), second[r][v]);
      const ScoreVec score = hn::Mul(hn::Mul(hn::ConvertTo(d, dots), scale), hn::Set(d, factor));
      hn::StoreU(score, d, high + r * kTileKeys + v * kScoreLanes);
      hn::StoreU(WithLow(factor, score, scale, third[r][v]), d,
                 out + r * work.values.row_stride + v * kScoreLanes);
    }
  }
#endif
}

// Completes the scores of a group of short rows, kVectors vectors of keys. low: as in BothTile.
template <size_t kVectors>
HWY_INLINE void AddLowTile(const Work<Fx16>& work, int first_row, const KeyTile<uint8_t>& keys,
                           const uint8_t* HWY_RESTRICT low, float* HWY_RESTRICT out) {
  constexpr size_t kRows = Size(kGroupRows);
  const ScoreTag d;
  std::array<int32_t, kRows> offsets;
  for (size_t r = 0; r < kRows; ++r) offsets[r] = work.Fixed(first_row + int(r)).offset;
  const uint8_t* vectors[kVectors];
  for (size_t v = 0; v < kVectors; ++v) vectors[v] = low + v * 4 * kScoreLanes;
  const QuadRows quads = QuadsOf(work, first_row);
  HighDots<kRows, kVectors, /*kStreams=*/false>(
      quads.first, quads.stride, offsets, work.HeadDim(), vectors, 4 * kTileKeys, [](size_t) {},
      [&](size_t r, size_t v, FixedIntVec dots) {
        float* to = out + r * work.values.row_stride + v * kScoreLanes;
        const float factor = work.Fixed(first_row + int(r)).low_factor;
        hn::StoreU(WithLow(factor, hn::LoadU(d, to), hn::LoadU(d, keys.scales[v]), dots), d, to);
      });
}

// The maximum of a row's first `count` scores from first_key on, and of `max`.
HWY_INLINE float MaxScore(const float* HWY_RESTRICT scores, size_t count, float max) {
  const ScoreTag d;
  ScoreVec maxima = hn::Set(d, max);
  size_t i = 0;
  for (; i + kScoreLanes <= count; i += kScoreLanes) {
    maxima = hn::Max(maxima, hn::LoadU(d, scores + i));
  }
  if (i < count) {
    maxima = hn::Max(maxima, hn::IfThenElse(hn::FirstN(d, count - i), hn::LoadU(d, scores + i),
                                            hn::Set(d, kLeastScore)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, maxima));
}

// ---- Candidates

// How a row treats its keys, from the sums and lower bounds of its splits.
struct RefineRule {
  bool is_done = false;  // Score added the low plane's part
  bool is_flat = false;  // every key is a candidate, and the sum is computed again
  // The weight of a key whose upper bound of the score is not above this is zero.
  float threshold = -std::numeric_limits<float>::infinity();
};

HWY_INLINE RefineRule RefineRuleOf(const Work<Fx16>& work, int row) {
  const ItemValues& values = work.values;
  const int num_keys = work.item.NumKeys(row);
  if (num_keys <= kShortRowKeys) return {.is_done = true};
  float lower = kLeastScore;
  double sum = 0;
  for (int split = 0; split < work.item.NumSplits(); ++split) {
    lower = std::max(lower, values.max[values.AtSplit(row, split)]);
    sum += values.sum[values.AtSplit(row, split)];
  }
  const ReweightPower& power = *work.powers[row];
  const WeightRule rule = ReduceRow(work.args.spec, power, num_keys, lower, sum);
  // Not a row whose sum is NaN: it has no candidates, and its output is NaN.
  if (rule.kind != WeightKind::kReweightSoftplus ||
      FlatFixedPeak(power.P(), num_keys) * double{rule.inverse_peak} > 1) {
    return {.is_flat = true};
  }
  return {.threshold = rule.threshold};
}

// Where the keys of a chunk are, by page.
struct ChunkKeys {
  ChunkKeys() = default;
  ChunkKeys(const Work<Fx16>& work, int chunk)
      : low_stride(work.kv.LowStride()), page_shift(work.kv.PageShift()) {
    const int end = std::min(work.item.MaxKeys(), chunk + kChunkKeys);
    for (int key = chunk, page = 0; key < end; key += work.kv.PageSize(), ++page) {
      low[page] = work.kv.LowKey(key) - Size(key - chunk) * low_stride;
      scales[page] = work.kv.KeyScales(key) - (key - chunk);
    }
  }
  // The low plane of the chunk's key `key`.
  HWY_INLINE const uint8_t* Low(int32_t key) const {
    return low[uint32_t(key) >> page_shift] + size_t(key) * low_stride;
  }
  HWY_INLINE const float* Scale(size_t key) const { return scales[key >> page_shift] + key; }

  size_t low_stride = 0;
  int page_shift = 0;
  const uint8_t* low[kChunkKeys / kMinPageSize];
  const float* scales[kChunkKeys / kMinPageSize];
};

// The candidates of a row in one chunk: their keys, counted from its first, scores and scales.
struct Candidates {
  static constexpr size_t kCapacity = kChunkKeys + kVectorFloats;
  size_t count = 0;
  int32_t keys[kCapacity];
  float scores[kCapacity];
  float scales[kCapacity];
};

// Lists the candidates among the first `count` keys of a chunk.
HWY_INLINE void ListCandidates(const FixedRow& row, const ChunkKeys& chunk, size_t count,
                               float threshold, const float* HWY_RESTRICT scores,
                               Candidates& list) {
  const ScoreTag d;
  const FixedIntTag d_int;
  const ScoreVec least = hn::Set(d, threshold);
  const ScoreVec bound = hn::Set(d, row.bound);
  [[maybe_unused]] auto lanes = hn::Iota(d_int, 0);
  [[maybe_unused]] const auto step = hn::Set(d_int, int32_t(kScoreLanes));
  size_t num_kept = 0;
  for (size_t i = 0; i < count; i += kScoreLanes) {
    const ScoreVec score = hn::LoadU(d, scores + i);
    const ScoreVec scale = hn::LoadU(d, chunk.Scale(i));
    auto is_candidate = hn::Gt(hn::Add(score, hn::Mul(scale, bound)), least);
    if (i + kScoreLanes > count) is_candidate = hn::And(is_candidate, hn::FirstN(d, count - i));
    if constexpr (kHasToFront) {
      const auto is_candidate_int = hn::RebindMask(d_int, is_candidate);
      hn::StoreU(ToFront(d_int, lanes, is_candidate_int), d_int, list.keys + num_kept);
      hn::StoreU(ToFront(d, score, is_candidate), d, list.scores + num_kept);
      hn::StoreU(ToFront(d, scale, is_candidate), d, list.scales + num_kept);
      num_kept += hn::CountTrue(d, is_candidate);
      lanes = hn::Add(lanes, step);
    } else {
      const float* scales = chunk.Scale(i);
      ForLanes(is_candidate, [&](size_t lane) {
        list.keys[num_kept] = int32_t(i + lane);
        list.scores[num_kept] = scores[i + lane];
        list.scales[num_kept++] = scales[lane];
      });
    }
  }
  list.count = num_kept;
  // The last batch of keys is whole: the first key of the chunk stands for the missing ones.
  hn::StoreU(hn::Zero(d_int), d_int, list.keys + num_kept);
}

// Writes the candidates of a row in the chunk, in order: their scores from both planes to the front
// of the chunk's scores, and their keys. Returns the maximum of these scores and `max`.
HWY_INLINE float RefineList(const Work<Fx16>& work, int row, int chunk, const ChunkKeys& chunk_keys,
                            const Candidates& list, float max) {
  const ScoreTag d;
  const FixedIntTag d_int;
  const hn::Rebind<uint8_t, FixedIntTag> d_key;
  const FixedRow& fixed = work.Fixed(row);
  const int8_t* q = work.FixedQuery(row);
  float* HWY_RESTRICT scores = work.values.Scores(row) + chunk;
  uint8_t* HWY_RESTRICT keys = work.values.CandidateKeys(row) + chunk;
  work.values.NumCandidates(row, chunk) = int32_t(list.count);
  ScoreVec maxima = hn::Set(d, max);
  for (size_t i = 0; i < list.count; i += kLowBatch) {
    const int32_t* batch = list.keys + i;
    const auto low = [&](size_t lane) { return chunk_keys.Low(batch[lane]); };
    const FixedIntVec dots = LowDots<false>(fixed, q, low, work.HeadDim());
    const ScoreVec refined = WithLow(fixed.high_factor, hn::LoadU(d, list.scores + i),
                                     hn::LoadU(d, list.scales + i), dots);
    hn::StoreU(refined, d, scores + i);
    hn::StoreU(hn::DemoteTo(d_key, hn::LoadU(d_int, batch)), d_key, keys + i);
    const ScoreVec others = hn::Set(d, kLeastScore);
    maxima = hn::Max(maxima, i + kLowBatch <= list.count
                                 ? refined
                                 : hn::IfThenElse(hn::FirstN(d, list.count - i), refined, others));
  }
  return hn::GetLane(hn::MaxOfLanes(d, maxima));
}

// Refine: the candidates of one split and their exact scores. Chunks outside and rows inside, so
// that the low plane of a chunk stays in L1 for the rows of an item. The candidates of a decode
// step are scattered: they are prefetched while the next two chunks are listed, for a few rows
// together.
void Refine(const Work<Fx16>& work, int split) {
  const AttentionItem& item = work.item;
  const ItemValues& values = work.values;
  RefineRule rules[kBlockRows];
  bool is_done = true;
  for (int row = 0; row < item.num_rows; ++row) {
    rules[row].is_done = HasBothPlanes(item, row);
    if (!rules[row].is_done) rules[row] = RefineRuleOf(work, row);
    if (rules[row].is_done) continue;
    is_done = false;
    values.refined_max[values.AtSplit(row, split)] = kLeastScore;
  }
  if (is_done) return;
  const int first = split * kSplitKeys;
  const int end = std::min(item.MaxKeys(), first + kSplitKeys);
  const auto list = [&](int row, int chunk, const ChunkKeys& keys, Candidates& candidates) {
    const int count = std::clamp(item.NumKeys(row) - chunk, 0, kChunkKeys);
    ListCandidates(work.Fixed(row), keys, Size(count), rules[row].threshold,
                   values.Scores(row) + chunk, candidates);
  };
  const auto refine = [&](int row, int chunk, const ChunkKeys& keys, const Candidates& candidates) {
    float& max = values.refined_max[values.AtSplit(row, split)];
    max = RefineList(work, row, chunk, keys, candidates, max);
  };
  if (!item.is_decode) {
    Candidates candidates;
    for (int chunk = first; chunk < end; chunk += kChunkKeys) {
      const ChunkKeys keys(work, chunk);
      for (int row = 0; row < item.num_rows; ++row) {
        if (rules[row].is_done) continue;
        list(row, chunk, keys, candidates);
        refine(row, chunk, keys, candidates);
      }
    }
    return;
  }
  struct Listed {
    int chunk;
    ChunkKeys keys;
    Candidates rows[kGroupRows];
  };
  for (int row = 0; row < item.num_rows; row += kGroupRows) {
    const int group_rows = item.GroupRows(row);
    const auto begin = [&](int chunk, Listed& listed) {
      listed.chunk = chunk;
      listed.keys = ChunkKeys(work, chunk);
      for (int r = 0; r < group_rows; ++r) {
        if (rules[row + r].is_done) continue;
        Candidates& candidates = listed.rows[r];
        list(row + r, chunk, listed.keys, candidates);
        for (size_t at = 0; at < candidates.count; ++at) {
          const uint8_t* low = listed.keys.Low(candidates.keys[at]);
          for (size_t dim = 0; dim < work.HeadDim(); dim += 64) PrefetchToL2(low + dim);
        }
      }
    };
    WalkChunksAhead<Listed>(first, end, begin, [&](const Listed& ready) {
      for (int r = 0; r < group_rows; ++r) {
        if (rules[row + r].is_done) continue;
        refine(row + r, ready.chunk, ready.keys, ready.rows[r]);
      }
    });
  }
}

// dots[i] = <q, key i> in double, of kExactKeys keys from `key` on.
HWY_INLINE void FixedExactDots(const Work<Fx16>& work, int row, int key, double* dots) {
  const FixedRow& fixed = work.Fixed(row);
  constexpr size_t kVectors = size_t{kExactKeys} / kScoreLanes;
  const uint8_t* vectors[kVectors];
  for (size_t v = 0; v < kVectors; ++v) vectors[v] = work.kv.Key(key + int(v * kScoreLanes));
  const QuadRows quads = QuadsOf(work, row);
  HWY_ALIGN int32_t high[kExactKeys];
  const auto store = [&](size_t, size_t v, FixedIntVec sums) {
    hn::StoreU(sums, FixedIntTag(), high + v * kScoreLanes);
  };
  HighDots<1, kVectors, false>(
      quads.first, quads.stride, {fixed.offset}, work.HeadDim(), vectors, work.kv.KeyStride(),
      [](size_t) {}, store);
  for (int i = 0; i < kExactKeys; i += int(kLowBatch)) {
    const uint8_t* first = work.kv.LowKey(key + i);
    const auto low = [&](size_t lane) { return first + lane * work.kv.LowStride(); };
    HWY_ALIGN int32_t low_dots[kLowBatch];
    hn::Store(LowDots<true>(fixed, work.FixedQuery(row), low, work.HeadDim()), FixedIntTag(),
              low_dots);
    for (size_t lane = 0; lane < kLowBatch; ++lane) {
      const size_t at = size_t(i) + lane;
      dots[at] = double{fixed.q_scale} * double{work.kv.KeyScales(key)[at]} *
                 (256.0 * high[at] + low_dots[lane]);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
