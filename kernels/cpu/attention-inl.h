// The loops of attention that run in registers: dot products with keys, scores to weights, and
// weighted sums of values. Included once per target, inside foreach_target.h.
//
// None of them reorders a sum by how many rows or keys it is given at once: a dot product is one
// multiply-add chain over dim, a sum over a chunk's keys has one accumulator a lane (lane = key
// mod lanes), and a weighted sum of values is one multiply-add chain over a chunk's keys.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/attention_spec.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/float_math-inl.h"
#include "kernels/cpu/head_pages-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

using ScoreTag = hn::CappedTag<float, 16>;
using ScoreVec = hn::Vec<ScoreTag>;
constexpr size_t kScoreLanes = hn::MaxLanes(ScoreTag());

// Keys whose dot products are taken at once.
constexpr size_t kTileKeys = 64;
constexpr size_t kTileVectors = kTileKeys / kScoreLanes;

// Vectors of keys, or of a value's dimensions, that kGroupRows rows share: 16 accumulators of the
// 32 registers of AVX-512, 8 of the 16 elsewhere.
constexpr size_t kGroupVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
// The same for a single row: as many independent chains as hide the latency of a multiply-add.
constexpr size_t kRowVectors = std::min<size_t>(kTileVectors, 8);

template <typename T>
HWY_INLINE ScoreVec LoadWide(const T* from) {
  return LoadWideAs(ScoreTag(), from);
}

// The first `count` elements of a vector; the others are zero and not read.
template <typename T>
HWY_INLINE ScoreVec LoadWideFirst(const T* from, size_t count) {
  HWY_ALIGN T whole[kScoreLanes] = {};
  std::memcpy(whole, from, count * sizeof(T));
  return LoadWide(whole);
}

// ---- Score

// kTileVectors vectors of keys, or some of them. vectors[v] + dim * stride: the elements of one
// dim.
template <typename T>
struct KeyTile {
  const T* const* vectors;
  size_t stride;
  // scales[v]: of the vector's keys; null where elements need none.
  const float* const* scales;
  // For a single row only: vectors of the keys to fetch meanwhile.
  const T* const* ahead = nullptr;
};

// out[r * out_stride + v * lanes + lane] = <q_r, key>, for kVectors vectors of keys. A key's scale
// multiplies its whole sum: one instruction in place of one a dim. For a single row, meanwhile(v)
// is called for each v < kVectors, at even distances: arithmetic for which memory need not wait. q
// [dim][kRows]
template <size_t kRows, size_t kVectors, typename T, class Meanwhile>
HWY_INLINE void DotTile(const float* HWY_RESTRICT q, size_t head_dim, const KeyTile<T>& keys,
                        float* HWY_RESTRICT out, size_t out_stride, const Meanwhile& meanwhile) {
  const ScoreTag d;
  constexpr size_t kVectorsOfLine = std::max<size_t>(1, 64 / (kScoreLanes * sizeof(T)));
  ScoreVec sums[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  const auto multiply = [&](size_t begin, size_t end) {
    for (size_t dim = begin; dim < end; ++dim) {
      ScoreVec k[kVectors];
      for (size_t v = 0; v < kVectors; ++v) {
        k[v] = LoadWide(keys.vectors[v] + dim * keys.stride);
        if (kRows == 1 && v % kVectorsOfLine == 0) {
          hwy::Prefetch(keys.ahead[v] + dim * keys.stride);
        }
      }
      for (size_t r = 0; r < kRows; ++r) {
        const ScoreVec q_r = hn::Set(d, q[dim * kRows + r]);
        for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(q_r, k[v], sums[r][v]);
      }
    }
  };
  if constexpr (kRows == 1) {
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

// Replaces `count` of a row's scores by f(scores), and hands each new vector to `collect`. Lanes
// beyond count, up to `room` of them, become `rest` whatever they held.
template <class F, class Collect>
HWY_INLINE void MapScores(float* scores, size_t count, size_t room, float rest, const F& f,
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
        hn::IfThenElse(hn::FirstN(d, count - i), f(hn::LoadU(d, scores + i)), hn::Set(d, rest));
    hn::StoreU(mapped, d, scores + i);
    collect(mapped);
    i += kScoreLanes;
  }
  for (; i < room; i += kScoreLanes) hn::StoreU(hn::Set(d, rest), d, scores + i);
}

// Sum and maximum of a row's scores in one chunk, taken tile by tile: one accumulator a lane.
struct ChunkStats {
  HWY_INLINE void Reset(float least) {
    sum = hn::Zero(ScoreTag());
    max = hn::Set(ScoreTag(), least);
  }
  HWY_INLINE double Sum() const { return double{hn::GetLane(hn::SumOfLanes(ScoreTag(), sum))}; }
  HWY_INLINE float Max() const { return hn::GetLane(hn::MaxOfLanes(ScoreTag(), max)); }

  ScoreVec sum;
  ScoreVec max;
};

// Smaller than every score, and than every phi that is re-weighted.
constexpr float kLeastScore = std::numeric_limits<float>::lowest();
constexpr float kLeastPhi = 0.0f;

// What Score does to a row's scores. Those of e^s stay as they are: only their maximum, which
// Reduce knows, makes e^(s - max) of them.
struct StageOne {
  Phi phi = Phi::kSoftplus;
  float shift = 0;

  constexpr float Least() const { return phi == Phi::kExp ? kLeastScore : kLeastPhi; }
};

// TakeScores of the kinds that are not worth code inside of Score's loops.
HWY_NOINLINE ChunkStats TakeOtherScores(StageOne stage, float* scores, size_t count, size_t room,
                                        ChunkStats stats) {
  const ScoreTag d;
  const ScoreVec shift = hn::Set(d, stage.shift);
  const auto take = [&](const auto& phi) {
    MapScores(
        scores, count, room, kLeastPhi, [&](ScoreVec s) { return phi(hn::Add(s, shift)); },
        [&](ScoreVec a) {
          stats.sum = hn::Add(stats.sum, a);
          stats.max = hn::Max(stats.max, a);
        });
    return stats;
  };
  switch (stage.phi) {
    case Phi::kRelu: return take([&](ScoreVec s) { return Relu(d, s); });
    case Phi::kRelu2:
      return take([&](ScoreVec s) {
        const ScoreVec relu = Relu(d, s);
        return hn::Mul(relu, relu);
      });
    case Phi::kRelu6: return take([&](ScoreVec s) { return AtMost(d, 6.0f, Relu(d, s)); });
    case Phi::kGelu: return take([&](ScoreVec s) { return Gelu(d, s); });
    case Phi::kSigmoid: return take([&](ScoreVec s) { return Sigmoid(d, s); });
    case Phi::kMish: return take([&](ScoreVec s) { return Mish(d, s); });
    case Phi::kSoftplus:
    case Phi::kExp: break;  // TakeScores' own
  }
  return stats;
}

// Makes phi of a row's first `count` scores of a tile, or of one vector of it, in place.
HWY_INLINE void TakeScores(StageOne stage, float* scores, size_t count, size_t room,
                           ChunkStats& stats) {
  const ScoreTag d;
  if (stage.phi == Phi::kSoftplus) {  // of no kind that has a shift
    MapScores(
        scores, count, room, kLeastPhi, [&](ScoreVec s) { return Softplus(d, s); },
        [&](ScoreVec softplus) {
          stats.sum = hn::Add(stats.sum, softplus);
          stats.max = hn::Max(stats.max, softplus);
        });
  } else if (stage.phi == Phi::kExp) {
    MapScores(
        scores, count, room, kLeastScore, [](ScoreVec s) { return s; },
        [&](ScoreVec s) { stats.max = hn::Max(stats.max, s); });
  } else {
    stats = TakeOtherScores(stage, scores, count, room, stats);
  }
}

// Sum of e^(score - max) over a chunk's first `count` scores.
HWY_INLINE double SumOfExp(const float* scores, size_t count, float max) {
  const ScoreTag d;
  ScoreVec sum = hn::Zero(d);
  for (size_t i = 0; i < count; i += kScoreLanes) {
    const ScoreVec exp = ExpOfNegative(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, max)));
    const size_t left = count - i;
    sum = hn::Add(sum, left >= kScoreLanes ? exp : hn::IfThenElseZero(hn::FirstN(d, left), exp));
  }
  return double{hn::GetLane(hn::SumOfLanes(d, sum))};
}

// ---- Reduce

// How a row's scores become weights, up to the division by their sum.
enum class WeightRule : uint8_t {
  kSharpen,     // from phi
  kSharpenExp,  // from e^(score - max)
  kRatio,       // from x / x_m, which a flat row has in place of its scores
  kPhi,         // phi itself: no stage 2, or no peak for it
  kExp,         // e^(score - max): the same where phi is e^s
};

struct RowRule {
  WeightRule rule = WeightRule::kPhi;
  float max = 0;  // of phi, or of the scores where phi is e^s
  // kSharpen: x = N a - o = gain * phi - o. The gain, N / sum, in two parts, because x may be a
  // small difference of numbers near 1.
  float gain = 0;
  float gain_rest = 0;
  float offset = 0;
  float inverse_peak = 0;
  // kRatio: x = exact_gain * phi - o, x_m
  double exact_gain = 0;
  double exact_peak = 0;
};

// A peak x_m is a difference of fp32 numbers near 1, and their rounding shows p / x_m times larger
// in a weight. Rows whose peak is below FlatPeak are flat: their scores are taken again in double.
// They are about 2% of the rows of a trained model, nearly all of them among a prompt's first
// dozens.
HWY_INLINE float FlatPeak(double p) { return static_cast<float>(0.03 * std::min(p, 15.0)); }

// Below this a row is degenerate for certain, whatever rounding did to its peak.
constexpr float kCertainlyDegeneratePeak = kDegeneratePeak / 2;

HWY_INLINE ScoreVec Sharpness(const RowRule& row, ScoreVec phi) {
  const ScoreTag d;
  const ScoreVec x = hn::MulSub(hn::Set(d, row.gain), phi, hn::Set(d, row.offset));
  return hn::MulAdd(hn::Set(d, row.gain_rest), phi, x);
}

// The rule of a row whose keys keep the weights of stage 1.
HWY_INLINE WeightRule StageOneRule(const AttentionSpec& spec) {
  return spec.Form().phi == Phi::kExp ? WeightRule::kExp : WeightRule::kPhi;
}

// The rule of a row of `num_keys` keys, from the maximum and the sum of phi; where phi is e^s, from
// the scores' maximum and the sum of e^(score - max).
HWY_INLINE RowRule ReduceRow(const AttentionSpec& spec, int num_keys, float max, double sum) {
  RowRule row{.rule = StageOneRule(spec), .max = max};
  if (!spec.Form().reweights) return row;
  const bool is_exp = row.rule == WeightRule::kExp;
  const double gain = static_cast<double>(num_keys) / sum;
  row.gain = static_cast<float>(gain);
  row.gain_rest = static_cast<float>(gain - double{row.gain});
  row.offset = num_keys <= 3 ? 0.0f : 1.0f;
  const float peak = hn::GetLane(Sharpness(row, hn::Set(ScoreTag(), is_exp ? 1.0f : max)));
  if (peak <= kCertainlyDegeneratePeak) return row;
  row.rule = peak < FlatPeak(spec.p) ? WeightRule::kRatio
             : is_exp                ? WeightRule::kSharpenExp
                                     : WeightRule::kSharpen;
  row.inverse_peak = 1.0f / peak;
  return row;
}

// The same for a row found flat, from its exact maximum and sum.
HWY_INLINE void ReduceFlatRow(const AttentionSpec& spec, int num_keys, double max, double sum,
                              RowRule& row) {
  row.exact_gain = static_cast<double>(num_keys) / sum;
  row.exact_peak = row.exact_gain * max - double{row.offset};
  if (row.exact_peak <= double{kDegeneratePeak}) row.rule = StageOneRule(spec);
}

// Keys of one page, whatever its size, that ExactDots takes at once.
constexpr int kExactKeys = kMinPageSize;

// dots[i] = <q, key i> in double. keys + dim * stride: kExactKeys elements of one dim; scales: of
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

// ---- Weigh

// u^p, or zero when that is negligible.
class Sharpener {
 public:
  explicit Sharpener(double p)
      : power_(p),
        floor_(static_cast<float>(std::pow(double{kNegligibleWeight}, 1.0 / p) *
                                  (1.0 - std::max(1e-3 / p, 0x1p-22)))) {}

  HWY_INLINE ScoreVec operator()(ScoreVec u) const {
    const ScoreTag d;
    const ScoreVec powers = power_(d, hn::Max(u, hn::Set(d, floor_)));
    return hn::IfThenElseZero(hn::Ge(powers, hn::Set(d, kNegligibleWeight)), powers);
  }

 private:
  Power power_;
  // The power of a u below this is negligible for certain; raising u to it first keeps the powers
  // out of the subnormal numbers, which are slow.
  float floor_;
};

// Scores of one chunk to weights, with the sum of their absolute values; adds to `num_read` how
// many are not zero.
HWY_INLINE double WeighChunk(const RowRule& row, const Sharpener& sharpener, float* scores,
                             size_t count, int64_t& num_read) {
  const ScoreTag d;
  ScoreVec sum = hn::Zero(d);
  size_t num_nonzero = 0;
  const auto collect = [&](ScoreVec weights) {
    sum = hn::Add(sum, hn::Abs(weights));
    num_nonzero += hn::CountTrue(d, hn::Ne(weights, hn::Zero(d)));
  };
  switch (row.rule) {
    case WeightRule::kSharpen: {
      const ScoreVec inverse_peak = hn::Set(d, row.inverse_peak);
      MapScores(
          scores, count, kChunkKeys, 0.0f,
          [&](ScoreVec phi) { return sharpener(hn::Mul(Sharpness(row, phi), inverse_peak)); },
          collect);
      break;
    }
    case WeightRule::kSharpenExp: {
      const ScoreVec inverse_peak = hn::Set(d, row.inverse_peak);
      const ScoreVec max = hn::Set(d, row.max);
      MapScores(
          scores, count, kChunkKeys, 0.0f,
          [&](ScoreVec s) {
            const ScoreVec phi = ExpOfNegative(d, hn::Sub(s, max));
            return sharpener(hn::Mul(Sharpness(row, phi), inverse_peak));
          },
          collect);
      break;
    }
    case WeightRule::kRatio:
      MapScores(
          scores, count, kChunkKeys, 0.0f, [&](ScoreVec u) { return sharpener(u); }, collect);
      break;
    case WeightRule::kPhi:
      MapScores(
          scores, count, kChunkKeys, 0.0f, [](ScoreVec phi) { return phi; }, collect);
      break;
    case WeightRule::kExp: {
      const ScoreVec max = hn::Set(d, row.max);
      MapScores(
          scores, count, kChunkKeys, 0.0f,
          [&](ScoreVec s) { return ExpOfNegative(d, hn::Sub(s, max)); }, collect);
      break;
    }
  }
  num_read += static_cast<int64_t>(num_nonzero);
  return double{hn::GetLane(hn::SumOfLanes(d, sum))};
}

// Rows of floats, row_stride apart.
template <typename T>
struct Rows {
  T* first;
  size_t row_stride;
};

// Writes to `keys` the keys in [begin, end) whose weight is not zero in any of the rows, in rising
// order, and returns how many. Requires begin and end multiples of the vector; room for one
// vector more than end - begin.
template <size_t kRows>
HWY_INLINE size_t ListKeys(Rows<const float> weights, size_t begin, size_t end, int32_t* keys) {
  const ScoreTag d;
  const hn::RebindToSigned<ScoreTag> d_int;
  const auto lanes = hn::Iota(d_int, 0);  // once: compilers build it lane by lane
  size_t count = 0;
  for (size_t key = begin; key < end; key += kScoreLanes) {
    // As integers: the bits of two floats together may look like a NaN.
    auto any = hn::BitCast(d_int, hn::LoadU(d, weights.first + key));
    for (size_t r = 1; r < kRows; ++r) {
      any = hn::Or(any,
                   hn::BitCast(d_int, hn::LoadU(d, weights.first + r * weights.row_stride + key)));
    }
    const auto survives = hn::Ne(any, hn::Zero(d_int));
    // Compress and a whole store: the compressing store is slow on some machines.
    const auto of_lanes = hn::Add(lanes, hn::Set(d_int, static_cast<int32_t>(key)));
    hn::StoreU(hn::Compress(of_lanes, survives), d_int, keys + count);
    count += hn::CountTrue(d_int, survives);
  }
  return count;
}

// Multiplies the weights of a vector of keys by the scales of their values. Zero stays zero, and
// then no scale is read. NaN stays NaN, which Ne of some targets takes for equal to anything.
HWY_INLINE void ScaleWeights(float* weights, const float* scales) {
  const ScoreTag d;
  const ScoreVec w = hn::LoadU(d, weights);
  const auto is_zero = hn::Eq(w, hn::Zero(d));
  if (hn::AllTrue(d, is_zero)) return;
  hn::StoreU(hn::IfThenZeroElse(is_zero, hn::Mul(w, hn::LoadU(d, scales))), d, weights);
}

// A chunk's surviving keys and where their values lie.
template <typename T>
struct ValueList {
  const int32_t* keys;
  const T* const* values;
  size_t count = 0;
  // The first keys that every row of the group attends; the later ones (fewer than kGroupRows) lie
  // beyond some row's N, and such a row must not touch them, be they NaN.
  size_t num_for_all = 0;
};

// sums[r][dim] += sum over the list of weights[r][key] * value[dim], for kVectors vectors from
// `first_dim` on.
// A kTail call takes the last `tail` dimensions, less than a vector.
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
  for (size_t i = 0; i < list.num_for_all; ++i) {
    const float* w = weights.first + list.keys[i];
    ScoreVec value[kVectors];
    for (size_t v = 0; v < kVectors; ++v) value[v] = load(i, v);
    for (size_t r = 0; r < kRows; ++r) {
      const ScoreVec w_r = hn::Set(d, w[r * weights.row_stride]);
      for (size_t v = 0; v < kVectors; ++v) chunk[r][v] = hn::MulAdd(w_r, value[v], chunk[r][v]);
    }
  }
  for (size_t i = list.num_for_all; i < list.count; ++i) {
    for (size_t r = 0; r < kRows; ++r) {
      const float w = weights.first[static_cast<size_t>(list.keys[i]) + r * weights.row_stride];
      if (w == 0.0f) continue;
      for (size_t v = 0; v < kVectors; ++v) {
        chunk[r][v] = hn::MulAdd(hn::Set(d, w), load(i, v), chunk[r][v]);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      float* to = sums.first + r * sums.row_stride + first_dim + v * kScoreLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), chunk[r][v]), d, to);
    }
  }
}

// The same for all dimensions: as many vectors at a time as registers allow.
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
