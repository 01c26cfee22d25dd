// From scores to weights, with the same instructions in decode and prefill.
#ifndef LSSAR_KERNELS_CUDA_ATTENTION_MATH_CUH_
#define LSSAR_KERNELS_CUDA_ATTENTION_MATH_CUH_

#include <cmath>

#include "kernels/attention_spec.h"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernel_args.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

inline constexpr float kLowestScore = -3.402823466e38f;
inline constexpr unsigned kMinusInfinity = 0xFF800000;  // bits

// Scores are in units of log 2: x = s / ln 2. So e^s is one instruction, and the unit of a softplus
// cancels where it is divided by a sum of them.

// ln(1 + e^s) / ln 2 = log2(1 + 2^x). NaN stays NaN; 0 below -24.
// Accuracy  2^-22 absolute. A row in which that is not enough is a flat row (ReduceRow).
LSSAR_DEVICE float Softplus(float x) { return Log2(1.0f + Exp2(x)); }

// A sum of softplus scores. log2(1 + 2^x) = max(x, 0) + log2(1 + 2^-|x|), and the second terms are
// added as one logarithm of a product.
struct SoftplusSum {
  float positive;  // sum of max(x, 0)
  float product;   // of 1 + 2^-|x|, each at most 2

  // Not default member initialisers: in an array of arrays, nvcc (12.4 to 13.0) initialises only
  // the first array with them. tests/tidy forbids such arrays in device code too.
  LSSAR_DEVICE SoftplusSum() : positive(0), product(1) {}

  // At most kCudaSplitKeys / 32 times.
  LSSAR_DEVICE void Add(float x) {
    positive += fmaxf(x, 0.0f);
    product = MulAdd(product, Exp2(-fabsf(x)), product);
  }
};

// The parts of a split's sum that a thread holds: of key, part 2 (key / 8 mod 4) + key mod 2, for
// keys 2 (t mod 4) and + 1 of each 8.
struct SplitParts {
  SoftplusSum sums[8];
};

// The largest over the 4 threads of a row.
LSSAR_DEVICE float LargestOfQuad(float x) {
  x = fmaxf(x, ShuffleXor(x, 1));
  return fmaxf(x, ShuffleXor(x, 2));
}

// The parts added over the 4 threads of a row. Clears them.
LSSAR_DEVICE float TakeTotal(SplitParts& parts) {
  float positives[4], products[4];
  LSSAR_UNROLL
  for (int i = 0; i < 4; ++i) {
    SoftplusSum &even = parts.sums[2 * i], &odd = parts.sums[2 * i + 1];
    positives[i] = even.positive + odd.positive;
    products[i] = even.product * odd.product;
    even = odd = {};
  }
  // Each part's product is at most 2^8, so theirs is at most 2^64.
  const float product = (products[0] * products[1]) * (products[2] * products[3]);
  float sum = (positives[0] + positives[1]) + (positives[2] + positives[3]) + Log2(product);
  sum += ShuffleXor(sum, 1);
  sum += ShuffleXor(sum, 2);
  return sum;
}

LSSAR_DEVICE double ExactSoftplus(double s) { return (s < 0 ? 0.0 : s) + log1p(exp(-fabs(s))); }

// u^whole by squaring, the highest bit first.
LSSAR_DEVICE float WholePower(float u, unsigned whole) {
  if (whole == 15) {  // one product less
    const float cube = u * u * u, sixth = cube * cube;
    return sixth * sixth * cube;
  }
  float power = u;
  unsigned bit = 1;
  while (whole / 2 >= bit) bit *= 2;
  LSSAR_UNROLL
  for (bit /= 2; bit != 0; bit /= 2) {
    power = power * power;
    if ((whole & bit) != 0) power = power * u;
  }
  return power;
}

// u[i]^whole, with one branch for all of them to the powers that are compiled in: the paper's and
// those of the shipped models.
template <int kCount>
LSSAR_DEVICE void WholePowers(unsigned whole, float (&u)[kCount]) {
  const auto raise = [&](unsigned power) {
    LSSAR_UNROLL
    for (int i = 0; i < kCount; ++i) u[i] = WholePower(u[i], power);
  };
  if (whole == 15) return raise(15);
  if (whole == 12) return raise(12);
  if (whole == 10) return raise(10);
  raise(whole);
}

// u^p; 0 for a negative u. NaN stays NaN.
LSSAR_DEVICE float PowerOf(const CudaAttentionArgs& args, float u) {
  if (u < 0) return 0;
  return args.whole_p == 0 ? Exp2(args.p * Log2(u)) : WholePower(u, args.whole_p);
}

enum class WeightKind : int {
  kNone,      // no row
  kReweight,  // u^p of the softplus score
  kSoftplus,  // the softplus score itself
  kExp,       // e^(score - max)
  kFlat,      // AttendFlat computes the row again, in double
};

// How one row's scores become weights. The default gives every key of kReweight the weight 0.
struct WeightRule {
  WeightKind rule = WeightKind::kNone;
  float max = 0;                  // kExp
  float gain = 0;                 // kReweight: u = gain * softplus - offset
  float offset = 1;               // kReweight
  float scale = 1;                // a power of two that brings weights into fp16's range
  float least = 3.402823466e38f;  // a score below it has weight 0
};

// FlatPeak and FlatFixedPeak of two_planes.h.
LSSAR_DEVICE float FlatPeak(float p) {
  return p < 0.5f ? 3.402823466e38f : 0.03f * (p < 15.0f ? p : 15.0f);
}
LSSAR_DEVICE float FlatFixedPeak(float p, int num_keys) {
  return fmaxf(FlatPeak(p), 0.05f * Exp2((12 + Log2(float(num_keys))) / p));
}

// Where the largest softplus score of a row is below it, Softplus has too few digits for the row.
inline constexpr float kFaintScore = 0x1p-4f;

// 2^(to - exponent of x): x times it is in [2^to, 2^(to + 1)). 1 where x is zero or not finite.
LSSAR_DEVICE float PowerOfTwoFor(float x, int to) {
  const int exponent = int((BitsOfFloat(x) >> 23) & 0xFF);
  if (exponent == 0 || exponent == 0xFF) return 1.0f;
  int biased = 127 + to - (exponent - 127);
  if (biased > 227) biased = 227;
  return FloatOfBits(unsigned(biased) << 23);
}

// The rule that lane `lane` passes. All lanes of the warp.
LSSAR_DEVICE WeightRule RuleOfLane(const WeightRule& rule, int lane) {
  return {.rule = WeightKind(Shuffle(int(rule.rule), lane)),
          .max = Shuffle(rule.max, lane),
          .gain = Shuffle(rule.gain, lane),
          .offset = Shuffle(rule.offset, lane),
          .scale = Shuffle(rule.scale, lane),
          .least = Shuffle(rule.least, lane)};
}

// The score whose softplus is `softplus`, within 2^-16 of it. 2^softplus - 1 needs a series where
// it is small.
LSSAR_DEVICE float ScoreOf(float softplus) {
  const float y = softplus * 0.69314718f;
  const float t = softplus < 0.0625f ? y * (1 + y * (0.5f + y * 0.16666667f)) : Exp2(softplus) - 1;
  return Log2(t);
}

// The rule of a row with num_keys keys, from its largest score and the sum of its softplus scores.
LSSAR_DEVICE WeightRule ReduceRow(const CudaAttentionArgs& args, int num_keys, float max,
                                  double sum) {
  WeightRule row;
  row.scale = 0x1p15f;
  row.max = max;
  if (args.form.phi == Phi::kExp) {
    row.rule = WeightKind::kExp;
    row.least = kLowestScore;
    return row;
  }
  row.rule = WeightKind::kFlat;
  const float largest = Softplus(max);
  if (largest < kFaintScore) return row;
  if (!args.form.reweights) {
    row.rule = WeightKind::kSoftplus;
    row.scale = PowerOfTwoFor(largest, 14);
    row.least = kLowestScore;
    return row;
  }
  const double gain = double(num_keys) / sum;
  const double offset = num_keys <= 3 ? 0.0 : 1.0;
  const double peak = gain * double(largest) - offset;
  if (peak < double(FlatPeak(args.p))) return row;
  row.rule = WeightKind::kReweight;
  row.gain = float(gain / peak);
  row.offset = float(offset / peak);
  row.least = ScoreOf(float((double(args.floor) * peak + offset) / gain));
  return row;
}

// fx16: every score of the row is computed from both planes.
LSSAR_DEVICE bool IsShortRow(int num_keys) { return num_keys <= kShortRowKeys; }
static_assert(kShortRowKeys <= kCudaSplitKeys);

// fx16: the rule of a row from its sum and lower bounds, from ReduceRow's of them.
LSSAR_DEVICE WeightRule LowRule(const CudaAttentionArgs& args, int num_keys, WeightRule low) {
  // offset: 1 / peak
  if (low.rule == WeightKind::kReweight && !IsShortRow(num_keys) &&
      FlatFixedPeak(args.p, num_keys) * low.offset > 1) {
    low.rule = WeightKind::kFlat;
    low.least = WeightRule().least;
  }
  return low;
}

// The rule of a row over fx16, from that of its largest score. low: of the scores' lower bounds,
// which says whether a long row is flat.
LSSAR_DEVICE WeightRule RefinedRule(int num_keys, const WeightRule& low,
                                    const WeightRule& refined) {
  return !IsShortRow(num_keys) && low.rule == WeightKind::kFlat ? low : refined;
}

// The weight of a key with this score, before the division by the sum of weights.
LSSAR_DEVICE float WeightOf(const CudaAttentionArgs& args, const WeightRule& row, float score) {
  switch (row.rule) {
    case WeightKind::kReweight:
      if (score < row.least) return 0.0f;
      return PowerOf(args, MulAdd(row.gain, Softplus(score), -row.offset));
    case WeightKind::kSoftplus: return Softplus(score);
    case WeightKind::kExp: return Exp2(score - row.max);
    default: return 0.0f;
  }
}

// The factor of a row's dot products: ScaleOf (attention_math.h).
LSSAR_DEVICE double ScoreScale(const CudaAttentionArgs& args, int num_keys) {
  const double dim = double(args.pages.head_dim);
  return args.form.is_length_scaled ? log(dim) * log(double(num_keys)) : 1.0 / sqrt(dim);
}

// The same for scores in units of log 2. q is multiplied by it before it is split in parts.
// log_keys: ln(N)
LSSAR_DEVICE float RowScale(const CudaAttentionArgs& args, double log_keys) {
  return float(args.form.is_length_scaled ? args.score_unit * log_keys : args.score_unit);
}

// q and k have unit length, or are zero.
LSSAR_DEVICE bool HasUnitRows(const CudaAttentionArgs& args) { return args.form.is_length_scaled; }

// A score is the sum of the products of q's two parts. Where this is true, the first part alone
// decides a row's sum and maximum. The maximum is a divisor of all of a row's weights. An error of
// the sum shifts all u by the same amount, which a power takes from the small ones: it changes the
// result by up to 1 / x_m of it, where x_m is at least FlatPeak(p). Softmax has no sum, and its
// maximum must be near the largest score, as must that of a large p.
LSSAR_DEVICE bool SumsFirstPart(const CudaAttentionArgs& args) {
  return HasUnitRows(args) && args.form.phi == Phi::kSoftplus &&
         (!args.form.reweights || (args.p >= 3.0f && args.p <= 30.0f));
}

// The most that the second part adds to a score of unit vectors: the first has 11 bits. Twice that,
// because stored keys are rounded too.
LSSAR_DEVICE float SecondPartBound(float row_scale) { return row_scale * 0x1p-10f; }

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_ATTENTION_MATH_CUH_
