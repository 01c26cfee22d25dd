// Weights of attention: the rule of a row from its sum and maximum, and its scores or phi replaced
// by weights. Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_RULE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_RULE_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_RULE_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_RULE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/attention_spec.h"
#include "kernels/cpu/attention_dot-inl.h"
#include "kernels/cpu/attention_phi-inl.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/float_math-inl.h"
#include "kernels/two_planes.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// ---- Reduce

// u^p, or zero if that is negligible.
class ReweightPower {
 public:
  explicit ReweightPower(double p)
      : p_(p),
        power_(p),
        floor_(std::max(float(std::pow(double{kNegligibleWeight}, 1.0 / p) *
                              (1.0 - std::max(1e-3 / p, 0x1p-22))),
                        std::numeric_limits<float>::min())) {}

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
enum class WeightKind : uint8_t {
  kReweight,          // u^p, from phi
  kReweightSoftplus,  // u^p, from the score: phi = log2(1 + 2^score)
  kReweightExp,       // u^p, from e^(score - max)
  kRatio,             // u^p, from u: a flat row stores u instead of phi
  kPhi,               // phi: no stage 2, or a row without a peak
  kSoftplus,          // phi of a row without a peak, from the score: log2(1 + 2^score)
  kExp,               // e^(score - max): the same if phi is e^s
};

// The formula with the numbers of one row.
struct WeightRule {
  WeightKind kind = WeightKind::kPhi;
  float max = 0;  // of phi; of the scores if Score leaves them unchanged, or is_exp_row
  // phi is computed again from the scores, in double, as e^(score - max) (IsExpRow of a sigmoid):
  // what Score left has no more than its smallest number.
  bool is_exp_row = false;
  // kReweight: x = N a - o = gain * phi - o. The gain, N / sum, has two parts, because x may be a
  // small difference of numbers near 1.
  float gain = 0;
  float gain_rest = 0;
  float offset = 0;
  float inverse_peak = 0;
  // If the kind has a stage 2: the weight of a key whose stored number (score, phi or u, as the
  // kind says) is not above this is zero. Some of the others may be zero too.
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
HWY_INLINE float ThresholdOf(const WeightRule& row, float peak, float floor) {
  const double gain = double{row.gain} + double{row.gain_rest};
  const double phi =
      (double{floor} * double{peak} + double{row.offset}) / gain * (1.0 - kThresholdMargin);
  // The computed phi has a lower bound, 2^-126 or e^-87: near it a score does not decide.
  if (phi < 1e-35) return -std::numeric_limits<float>::infinity();
  double threshold = phi;
  if (row.kind == WeightKind::kReweightSoftplus) {
    threshold = phi + std::log2(-std::expm1(-phi * std::log(2.0)));
  } else if (row.kind == WeightKind::kReweightExp) {
    threshold = double{row.max} + std::log(phi);
  }
  return std::nextafter(float(threshold), -std::numeric_limits<float>::infinity());
}

// The error of a weight is p / x_m times the rounding error of x_m. A row whose peak x_m is below
// FlatPeak (two_planes.h) is flat: its scores are computed again in double.

// Below this a row is degenerate for every rounding error of its peak.
constexpr float kCertainlyDegeneratePeak = kDegeneratePeak / 2;

// x = N a - o.
HWY_INLINE ScoreVec ReweightX(const WeightRule& row, ScoreVec phi) {
  const ScoreTag d;
  const ScoreVec x = FusedMulAdd(d, hn::Set(d, row.gain), phi, hn::Set(d, -row.offset));
  return FusedMulAdd(d, hn::Set(d, row.gain_rest), phi, x);
}

// True if Score leaves the scores, in units of ln 2 (StageOne).
HWY_INLINE bool IsBase2(const AttentionForm& form) {
  return form.reweights && form.phi == Phi::kSoftplus;
}

// The kind of a row that keeps its stage-1 weights.
HWY_INLINE WeightKind StageOneKind(const AttentionSpec& spec) {
  const AttentionForm form = spec.Form();
  return form.phi == Phi::kExp ? WeightKind::kExp
         : IsBase2(form)       ? WeightKind::kSoftplus
                               : WeightKind::kPhi;
}

// The rule of a row of `num_keys` keys, from the maximum and the sum of phi. If Score leaves
// the scores unchanged: from the maximum of the scores and the sum of phi, or of e^(score - max).
HWY_INLINE WeightRule ReduceRow(const AttentionSpec& spec, const ReweightPower& power, int num_keys,
                                float max, double sum) {
  const ScoreTag d;
  WeightRule row{.kind = StageOneKind(spec), .max = max};
  if (!spec.Form().reweights) return row;
  const double gain = double(num_keys) / sum;
  row.gain = float(gain);
  row.gain_rest = float(gain - double{row.gain});
  row.offset = num_keys <= 3 ? 0.0f : 1.0f;
  const WeightKind stage_one = row.kind;
  ScoreVec max_phi = hn::Set(d, max);
  if (stage_one == WeightKind::kExp) max_phi = hn::Set(d, 1.0f);
  if (stage_one == WeightKind::kSoftplus) max_phi = SoftplusOfBase2(d, max_phi);
  const float peak = hn::GetLane(ReweightX(row, max_phi));
  if (peak <= kCertainlyDegeneratePeak) return row;
  if (peak < FlatPeak(power.P())) {
    row.kind = WeightKind::kRatio;
    row.threshold = power.Floor();
    return row;
  }
  row.kind = stage_one == WeightKind::kExp        ? WeightKind::kReweightExp
             : stage_one == WeightKind::kSoftplus ? WeightKind::kReweightSoftplus
                                                  : WeightKind::kReweight;
  row.inverse_peak = 1.0f / peak;
  row.threshold = ThresholdOf(row, peak, power.Floor());
  return row;
}

// The same for a flat row, from the maximum and the sum in double.
HWY_INLINE void ReduceFlatRow(const AttentionSpec& spec, int num_keys, double max, double sum,
                              WeightRule* row) {
  row->exact_gain = double(num_keys) / sum;
  row->exact_peak = row->exact_gain * max - double{row->offset};
  if (row->exact_peak <= double{kDegeneratePeak}) {
    row->kind = StageOneKind(spec);
    row->threshold = -std::numeric_limits<float>::infinity();
  }
}

// ---- Weigh, of kinds without a stage 2: nearly all weights are non-zero

// Replaces phi of one chunk, or the scores if phi is e^s, by weights. Returns the sum of their
// absolute values; adds the number of non-zero weights to `num_read`. has_window: scores of
// kLeastScore are those of keys before the window.
HWY_INLINE double WeighChunk(const WeightRule& row, bool has_window, float* scores, size_t count,
                             int64_t* num_read) {
  const ScoreTag d;
  ScoreVec sum = hn::Zero(d);
  size_t num_nonzero = 0;
  const auto collect = [&](ScoreVec weights) {
    sum = hn::Add(sum, hn::Abs(weights));
    num_nonzero += hn::CountTrue(d, hn::Ne(weights, hn::Zero(d)));
  };
  const ScoreVec max = hn::Set(d, row.max);
  if (row.kind == WeightKind::kExp && has_window) {
    const ScoreVec before = hn::Set(d, kLeastScore);
    MapScores(
        scores, count, kChunkKeys, 0.0f,
        [&](ScoreVec s) {
          return hn::IfThenZeroElse(hn::Eq(s, before), ExpOfNegative(d, hn::Sub(s, max)));
        },
        collect);
  } else if (row.kind == WeightKind::kExp) {
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
HWY_INLINE double WeighSurvivors(const WeightRule& row, const ReweightPower& power, float* scores,
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
  switch (row.kind) {
    case WeightKind::kReweightSoftplus:
      weigh([&](ScoreVec score) { return weight_of_phi(SoftplusOfBase2(d, score)); });
      break;
    case WeightKind::kReweightExp:
      weigh([&](ScoreVec s) { return weight_of_phi(ExpOfNegative(d, hn::Sub(s, max))); });
      break;
    case WeightKind::kReweight: weigh(weight_of_phi); break;
    case WeightKind::kRatio: weigh(power); break;
    case WeightKind::kSoftplus:
      weigh([&](ScoreVec score) { return SoftplusOfBase2(d, score); });
      break;
    case WeightKind::kExp:
      weigh([&](ScoreVec s) { return ExpOfNegative(d, hn::Sub(s, max)); });
      break;
    case WeightKind::kPhi: weigh([](ScoreVec phi) { return phi; }); break;
  }
  *num_read += int64_t(num_nonzero);
  return double{SumInOrder(sums)};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
