// The register loops of attention: dot products with keys, phi and weights from scores, weighted
// sums of values. Included once per target, inside foreach_target.h.
//
// The order of a sum does not depend on the number of rows or keys of a call: a dot product is one
// multiply-add chain over dim, a sum over a chunk's keys has one accumulator per lane (lane = key
// mod lanes), and a weighted sum of values is one multiply-add chain over a chunk's keys.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
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
#include "kernels/cpu/kv_head-inl.h"
#include "kernels/two_planes.h"

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

// ---- Score

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

// Lower bounds of scores, and of every phi.
constexpr float kLeastScore = std::numeric_limits<float>::lowest();
constexpr float kLeastPhi = 0.0f;

// How Score turns a row's scores into phi.
//   e^s                       Score leaves the scores unchanged: e^(s - max) needs the maximum,
//                             which Reduce computes
//   softplus, re-weighted     Score leaves the scores unchanged and computes only their sum: most
//                             keys are below the row's threshold, and Weigh computes phi of the
//                             others. Scores are in units of ln 2: phi = log2(1 + 2^score). The
//                             unit cancels in u
//   others                    Score replaces the scores by phi
struct StageOne {
  Phi phi = Phi::kSoftplus;
  float shift = 0;
  bool is_base_2 = false;  // softplus, re-weighted

  constexpr float Least() const { return phi == Phi::kExp || is_base_2 ? kLeastScore : kLeastPhi; }
};

// Sum of a row's phi and maximum of its phi or scores, in one chunk.
struct ChunkStats {
  HWY_INLINE void Reset(float least) {
    for (size_t v = 0; v < kSumVectors; ++v) {
      sum[v] = hn::Zero(ScoreTag());
      product[v] = hn::Zero(ScoreTag());
    }
    max = hn::Set(ScoreTag(), least);
  }
  HWY_INLINE double Sum(StageOne stage) const {
    const ScoreTag d;
    if (!stage.is_base_2) return double{hn::GetLane(hn::SumOfLanes(d, sum[0]))};
    ScoreVec whole[kSumVectors];
    for (size_t v = 0; v < kSumVectors; ++v) {
      whole[v] = hn::Add(sum[v], Log2OnePlus(d, product[v]));
    }
    return double{SumInOrder(whole)};
  }
  HWY_INLINE float Max() const { return hn::GetLane(hn::MaxOfLanes(ScoreTag(), max)); }

  // Only sum[0], one accumulator per lane, unless is_base_2.
  ScoreVec sum[kSumVectors];
  // is_base_2: the sum of phi is the sum of max(y, 0) plus the sum of log2(1 + t), t = 2^-|y|. The
  // latter is one logarithm of a product: product = (1 + t_1) (1 + t_2) ... - 1. Without the 1, so
  // that small t keep their digits. A chunk's 16 factors are at most 2 each.
  ScoreVec product[kSumVectors];
  ScoreVec max;
};

// Adds a row's first `count` scores of a tile, or of some vectors of it, to the chunk's stats.
// first_vector: of the scores, in their tile. The maximum is of of_max(i, y), y the scores from i
// on.
template <class OfMax>
HWY_INLINE void AddBase2(const float* scores, size_t first_vector, size_t count, ChunkStats& stats,
                         const OfMax& of_max) {
  const ScoreTag d;
  const auto add = [&](size_t v, ScoreVec y, ScoreVec t, ScoreVec bounded) {
    ScoreVec& product = stats.product[v];
    product = FusedMulAdd(d, product, t, hn::Add(product, t));
    stats.sum[v] = hn::Add(stats.sum[v], AtLeast(d, 0.0f, y));
    stats.max = hn::Max(stats.max, bounded);
  };
  size_t i = 0;
  for (; i + kScoreLanes <= count; i += kScoreLanes) {
    const ScoreVec y = hn::LoadU(d, scores + i);
    add((first_vector + i / kScoreLanes) % kSumVectors, y, Exp2OfNegativeAbs(d, y), of_max(i, y));
  }
  if (i < count) {
    const auto is_key = hn::FirstN(d, count - i);
    const ScoreVec y = hn::IfThenElse(is_key, hn::LoadU(d, scores + i), hn::Set(d, kLeastScore));
    add((first_vector + i / kScoreLanes) % kSumVectors, y,
        hn::IfThenElseZero(is_key, Exp2OfNegativeAbs(d, y)),
        hn::IfThenElse(is_key, of_max(i, y), hn::Set(d, kLeastScore)));
  }
}

// ApplyPhi for the phi that are not inlined into Score's loops.
HWY_NOINLINE ChunkStats ApplyOtherPhi(StageOne stage, float* scores, size_t count, size_t capacity,
                                      ChunkStats stats) {
  const ScoreTag d;
  const ScoreVec shift = hn::Set(d, stage.shift);
  const auto apply = [&](const auto& phi) {
    MapScores(
        scores, count, capacity, kLeastPhi, [&](ScoreVec s) { return phi(hn::Add(s, shift)); },
        [&](ScoreVec a) {
          stats.sum[0] = hn::Add(stats.sum[0], a);
          stats.max = hn::Max(stats.max, a);
        });
    return stats;
  };
  switch (stage.phi) {
    case Phi::kRelu: return apply([&](ScoreVec s) { return Relu(d, s); });
    case Phi::kRelu2:
      return apply([&](ScoreVec s) {
        const ScoreVec relu = Relu(d, s);
        return hn::Mul(relu, relu);
      });
    case Phi::kRelu6: return apply([&](ScoreVec s) { return AtMost(d, 6.0f, Relu(d, s)); });
    case Phi::kGelu: return apply([&](ScoreVec s) { return Gelu(d, s); });
    case Phi::kSigmoid: return apply([&](ScoreVec s) { return Sigmoid(d, s); });
    case Phi::kMish: return apply([&](ScoreVec s) { return Mish(d, s); });
    case Phi::kSoftplus:
    case Phi::kExp: break;  // in ApplyPhi
  }
  return stats;
}

// Applies StageOne to a row's first `count` scores of a tile, or of some vectors of it.
// first_vector: of the scores, in their tile.
HWY_INLINE void ApplyPhi(StageOne stage, float* scores, size_t first_vector, size_t count,
                         size_t capacity, ChunkStats& stats) {
  const ScoreTag d;
  if (stage.is_base_2) {
    AddBase2(scores, first_vector, count, stats, [](size_t, ScoreVec y) { return y; });
  } else if (stage.phi == Phi::kSoftplus) {  // no kind with softplus has a shift
    MapScores(
        scores, count, capacity, kLeastPhi, [&](ScoreVec s) { return Softplus(d, s); },
        [&](ScoreVec softplus) {
          stats.sum[0] = hn::Add(stats.sum[0], softplus);
          stats.max = hn::Max(stats.max, softplus);
        });
  } else if (stage.phi == Phi::kExp) {
    MapScores(
        scores, count, capacity, kLeastScore, [](ScoreVec s) { return s; },
        [&](ScoreVec s) { stats.max = hn::Max(stats.max, s); });
  } else {
    stats = ApplyOtherPhi(stage, scores, count, capacity, stats);
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

// u^p, or zero if that is negligible.
class ReweightPower {
 public:
  explicit ReweightPower(double p)
      : p_(p),
        power_(p),
        floor_(float(std::pow(double{kNegligibleWeight}, 1.0 / p) *
                     (1.0 - std::max(1e-3 / p, 0x1p-22)))) {}

  HWY_INLINE ScoreVec operator()(ScoreVec u) const {
    const ScoreTag d;
    const ScoreVec powers = power_(d, hn::Max(u, hn::Set(d, floor_)));
    return hn::IfThenElseZero(hn::Ge(powers, hn::Set(d, kNegligibleWeight)), powers);
  }

  double P() const { return p_; }
  // u^p is negligible for every u up to this.
  float Floor() const { return floor_; }

 private:
  double p_;
  Power power_;
  // Clamping u to it avoids subnormal powers, which are slow.
  float floor_;
};

// The formula of a row's weights, up to the division by their sum. u = x / x_m, x = N a - o.
enum class WeightRule : uint8_t {
  kReweight,          // u^p, from phi
  kReweightSoftplus,  // u^p, from the score: phi = log2(1 + 2^score)
  kReweightExp,       // u^p, from e^(score - max)
  kRatio,             // u^p, from u: a flat row stores u instead of phi
  kPhi,               // phi: no stage 2, or a row without a peak
  kSoftplus,          // phi of a row without a peak, from the score: log2(1 + 2^score)
  kExp,               // e^(score - max): the same if phi is e^s
};

struct RowWeighting {
  WeightRule rule = WeightRule::kPhi;
  float max = 0;  // of phi; of the scores if Score leaves them unchanged
  // kReweight: x = N a - o = gain * phi - o. The gain, N / sum, has two parts, because x may be a
  // small difference of numbers near 1.
  float gain = 0;
  float gain_rest = 0;
  float offset = 0;
  float inverse_peak = 0;
  // If the kind has a stage 2: the weight of a key whose stored number (score, phi or u, as the
  // rule says) is not above this is zero. Some of the others may be zero too.
  float threshold = -std::numeric_limits<float>::infinity();
  // kRatio: x = exact_gain * phi - o, x_m
  double exact_gain = 0;
  double exact_peak = 0;
};

// Relative error of phi, and of x = gain * phi - o relative to gain * phi, that thresholds allow
// for. That of the computed numbers is below 1e-6.
constexpr double kThresholdMargin = 1e-5;

// The threshold of a row of kReweight..., from its other fields: u^p is negligible up to u = floor,
// and u grows with phi, which grows with the score. The margin makes the threshold safe without a
// proof that every computed function is monotonic.
HWY_INLINE float ThresholdOf(const RowWeighting& row, float peak, float floor) {
  const double gain = double{row.gain} + double{row.gain_rest};
  const double phi =
      (double{floor} * double{peak} + double{row.offset}) / gain * (1.0 - kThresholdMargin);
  // The computed phi has a lower bound, 2^-126 or e^-87: near it a score does not decide.
  if (phi < 1e-35) return -std::numeric_limits<float>::infinity();
  double threshold = phi;
  if (row.rule == WeightRule::kReweightSoftplus) {
    threshold = phi + std::log2(-std::expm1(-phi * std::log(2.0)));
  } else if (row.rule == WeightRule::kReweightExp) {
    threshold = double{row.max} + std::log(phi);
  }
  return std::nextafter(float(threshold), -std::numeric_limits<float>::infinity());
}

// The error of a weight is p / x_m times the rounding error of x_m. A row whose peak x_m is below
// FlatPeak (two_planes.h) is flat: its scores are computed again in double.

// Below this a row is degenerate for every rounding error of its peak.
constexpr float kCertainlyDegeneratePeak = kDegeneratePeak / 2;

// x = N a - o.
HWY_INLINE ScoreVec ReweightX(const RowWeighting& row, ScoreVec phi) {
  const ScoreTag d;
  const ScoreVec x = FusedMulAdd(d, hn::Set(d, row.gain), phi, hn::Set(d, -row.offset));
  return FusedMulAdd(d, hn::Set(d, row.gain_rest), phi, x);
}

// True if Score leaves the scores, in units of ln 2 (StageOne).
HWY_INLINE bool IsBase2(const AttentionForm& form) {
  return form.reweights && form.phi == Phi::kSoftplus;
}

// The rule of a row that keeps its stage-1 weights.
HWY_INLINE WeightRule StageOneRule(const AttentionSpec& spec) {
  const AttentionForm form = spec.Form();
  return form.phi == Phi::kExp ? WeightRule::kExp
         : IsBase2(form)       ? WeightRule::kSoftplus
                               : WeightRule::kPhi;
}

// The weighting of a row of `num_keys` keys, from the maximum and the sum of phi. If Score leaves
// the scores unchanged: from the maximum of the scores and the sum of phi, or of e^(score - max).
HWY_INLINE RowWeighting ReduceRow(const AttentionSpec& spec, const ReweightPower& power,
                                  int num_keys, float max, double sum) {
  const ScoreTag d;
  RowWeighting row{.rule = StageOneRule(spec), .max = max};
  if (!spec.Form().reweights) return row;
  const double gain = double(num_keys) / sum;
  row.gain = float(gain);
  row.gain_rest = float(gain - double{row.gain});
  row.offset = num_keys <= 3 ? 0.0f : 1.0f;
  const WeightRule stage_one = row.rule;
  ScoreVec max_phi = hn::Set(d, max);
  if (stage_one == WeightRule::kExp) max_phi = hn::Set(d, 1.0f);
  if (stage_one == WeightRule::kSoftplus) max_phi = SoftplusOfBase2(d, max_phi);
  const float peak = hn::GetLane(ReweightX(row, max_phi));
  if (peak <= kCertainlyDegeneratePeak) return row;
  if (peak < FlatPeak(power.P())) {
    row.rule = WeightRule::kRatio;
    row.threshold = power.Floor();
    return row;
  }
  row.rule = stage_one == WeightRule::kExp        ? WeightRule::kReweightExp
             : stage_one == WeightRule::kSoftplus ? WeightRule::kReweightSoftplus
                                                  : WeightRule::kReweight;
  row.inverse_peak = 1.0f / peak;
  row.threshold = ThresholdOf(row, peak, power.Floor());
  return row;
}

// The same for a flat row, from the maximum and the sum in double.
HWY_INLINE void ReduceFlatRow(const AttentionSpec& spec, int num_keys, double max, double sum,
                              RowWeighting* row) {
  row->exact_gain = double(num_keys) / sum;
  row->exact_peak = row->exact_gain * max - double{row->offset};
  if (row->exact_peak <= double{kDegeneratePeak}) {
    row->rule = StageOneRule(spec);
    row->threshold = -std::numeric_limits<float>::infinity();
  }
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

// ---- Weigh, of kinds without a stage 2: nearly all weights are non-zero

// Replaces phi of one chunk, or the scores if phi is e^s, by weights. Returns the sum of their
// absolute values; adds the number of non-zero weights to `num_read`. has_window: scores of
// kLeastScore are those of keys before the window.
HWY_INLINE double WeighChunk(const RowWeighting& row, bool has_window, float* scores, size_t count,
                             int64_t* num_read) {
  const ScoreTag d;
  ScoreVec sum = hn::Zero(d);
  size_t num_nonzero = 0;
  const auto collect = [&](ScoreVec weights) {
    sum = hn::Add(sum, hn::Abs(weights));
    num_nonzero += hn::CountTrue(d, hn::Ne(weights, hn::Zero(d)));
  };
  const ScoreVec max = hn::Set(d, row.max);
  if (row.rule == WeightRule::kExp && has_window) {
    const ScoreVec before = hn::Set(d, kLeastScore);
    MapScores(
        scores, count, kChunkKeys, 0.0f,
        [&](ScoreVec s) {
          return hn::IfThenZeroElse(hn::Eq(s, before), ExpOfNegative(d, hn::Sub(s, max)));
        },
        collect);
  } else if (row.rule == WeightRule::kExp) {
    MapScores(
        scores, count, kChunkKeys, 0.0f,
        [&](ScoreVec s) { return ExpOfNegative(d, hn::Sub(s, max)); }, collect);
  } else {
    MapScores(
        scores, count, kChunkKeys, 0.0f, [](ScoreVec phi) { return phi; }, collect);
  }
  *num_read += int64_t(num_nonzero);
  return double{hn::GetLane(hn::SumOfLanes(d, sum))};
}

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

// ---- Weigh, of kinds with a stage 2: most weights are zero

// Moves the scores above the row's threshold to the front of the chunk's scores, in order, and
// writes their keys, counted from the chunk's first, to `keys`. Returns their number.
// Requires  `scores` is a whole chunk, of which the first `count` are keys; `keys` holds a chunk
//           and one vector more. from: the scores' keys, in rising order; null: all of the chunk
HWY_INLINE size_t KeepSurvivors(float threshold, float* scores, size_t count, const uint8_t* from,
                                int32_t* keys) {
  const ScoreTag d;
  const hn::RebindToSigned<ScoreTag> d_int;
  const hn::Rebind<uint8_t, ScoreTag> d_key;
  const ScoreVec least = hn::Set(d, threshold);
  [[maybe_unused]] auto lanes = hn::Iota(d_int, 0);
  [[maybe_unused]] const auto step = hn::Set(d_int, int32_t(kScoreLanes));
  size_t num_kept = 0;
  for (size_t i = 0; i < count; i += kScoreLanes) {
    hwy::Prefetch(scores + kChunkKeys + i);  // the row's next chunk
    if (from != nullptr) lanes = hn::PromoteTo(d_int, hn::LoadU(d_key, from + i));
    const ScoreVec score = hn::LoadU(d, scores + i);
    auto survives = hn::Gt(score, least);
    if (i + kScoreLanes > count) survives = hn::And(survives, hn::FirstN(d, count - i));
    // num_kept <= i: this overwrites no score that is still needed.
    if constexpr (kHasToFront) {
      hn::StoreU(ToFront(d, score, survives), d, scores + num_kept);
      hn::StoreU(ToFront(d_int, lanes, hn::RebindMask(d_int, survives)), d_int, keys + num_kept);
      num_kept += hn::CountTrue(d, survives);
      lanes = hn::Add(lanes, step);
    } else {
      ForLanes(survives, [&](size_t lane) {
        scores[num_kept] = scores[i + lane];
        keys[num_kept++] = from != nullptr ? int32_t{from[i + lane]} : int32_t(i + lane);
      });
    }
  }
  return num_kept;
}

// Replaces `count` scores, phi or u that KeepSurvivors kept by their weights. Returns the sum of
// the weights; adds the number of non-zero weights to `num_read`.
HWY_INLINE double WeighSurvivors(const RowWeighting& row, const ReweightPower& power, float* scores,
                                 size_t count, int64_t* num_read) {
  const ScoreTag d;
  ScoreVec sums[kSumVectors];
  for (size_t v = 0; v < kSumVectors; ++v) sums[v] = hn::Zero(d);
  size_t num_nonzero = 0;
  const auto weigh = [&](const auto& weight_of) {
    for (size_t i = 0; i < count; i += kScoreLanes) {
      ScoreVec weight = weight_of(hn::LoadU(d, scores + i));
      if (i + kScoreLanes > count) {
        weight = hn::IfThenElseZero(hn::FirstN(d, count - i), weight);
      }
      hn::StoreU(weight, d, scores + i);
      ScoreVec& sum = sums[i / kScoreLanes % kSumVectors];
      sum = hn::Add(sum, weight);
      num_nonzero += hn::CountTrue(d, hn::Gt(weight, hn::Zero(d)));
    }
  };
  const ScoreVec inverse_peak = hn::Set(d, row.inverse_peak);
  const ScoreVec max = hn::Set(d, row.max);
  const auto weight_of_phi = [&](ScoreVec phi) {
    return power(hn::Mul(ReweightX(row, phi), inverse_peak));
  };
  switch (row.rule) {
    case WeightRule::kReweightSoftplus:
      weigh([&](ScoreVec score) { return weight_of_phi(SoftplusOfBase2(d, score)); });
      break;
    case WeightRule::kReweightExp:
      weigh([&](ScoreVec s) { return weight_of_phi(ExpOfNegative(d, hn::Sub(s, max))); });
      break;
    case WeightRule::kReweight: weigh(weight_of_phi); break;
    case WeightRule::kRatio: weigh(power); break;
    case WeightRule::kSoftplus:
      weigh([&](ScoreVec score) { return SoftplusOfBase2(d, score); });
      break;
    case WeightRule::kExp:
      weigh([&](ScoreVec s) { return ExpOfNegative(d, hn::Sub(s, max)); });
      break;
    case WeightRule::kPhi: weigh([](ScoreVec phi) { return phi; }); break;
  }
  *num_read += int64_t(num_nonzero);
  return double{SumInOrder(sums)};
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
