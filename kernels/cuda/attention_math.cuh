// From scores to weights, with the same instructions in decode and prefill.
#ifndef LSSAR_KERNELS_CUDA_ATTENTION_MATH_CUH_
#define LSSAR_KERNELS_CUDA_ATTENTION_MATH_CUH_

#include <cmath>

#include "kernels/attention_spec.h"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernel_args.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

inline constexpr float kLowestScore = -3.402823466e38f;

// e^x for x <= 0; 0 below -87. NaN stays NaN.
// Accuracy  2^-21 relative
LSSAR_DEVICE float ExpOfNegative(float x) { return Exp2(x * 1.44269504089f); }

// softplus(s) = max(s, 0) + ln(1 + e^-|s|). NaN stays NaN.
// Source  minimax polynomial (Remez) of (t - ln(1 + t)) / t^2 on [0, 1], t = e^-|s|: no division
//         and one instruction of the special function unit
LSSAR_DEVICE float Softplus(float s) {
  const float t = ExpOfNegative(-fabsf(s));
  float poly = 0.00332816481f;
  poly = MulAdd(poly, t, -0.020249827f);
  poly = MulAdd(poly, t, 0.0577529505f);
  poly = MulAdd(poly, t, -0.106899604f);
  poly = MulAdd(poly, t, 0.15361274f);
  poly = MulAdd(poly, t, -0.196975829f);
  poly = MulAdd(poly, t, 0.249590487f);
  poly = MulAdd(poly, t, -0.333305606f);
  poly = MulAdd(poly, t, 0.499999347f);
  return (s < 0 ? 0.0f : s) + MulAdd(-(t * t), poly, t);
}

LSSAR_DEVICE double ExactSoftplus(double s) { return (s < 0 ? 0.0 : s) + log1p(exp(-fabs(s))); }

// u^p, or 0 where that is negligible. NaN stays NaN.
LSSAR_DEVICE float PowerOf(const CudaAttentionArgs& args, float u) {
  if (u < args.floor) return 0.0f;
  float power = u;
  if (args.whole_p == 0) {
    power = Exp2(args.p * Log2(u));
  } else {
    unsigned bit = 1;
    while (args.whole_p / 2 >= bit) bit *= 2;
    for (bit /= 2; bit != 0; bit /= 2) {
      power = power * power;
      if ((args.whole_p & bit) != 0) power = power * u;
    }
  }
  return power < kNegligibleWeight ? 0.0f : power;
}

enum class WeightKind : int {
  kNone,      // no row
  kReweight,  // u^p of the softplus score
  kSoftplus,  // the softplus score itself
  kExp,       // e^(score - max)
  kFlat,      // a row so flat that AttendFlat computes it again, in double
};

// How one row's scores become weights.
struct WeightRule {
  WeightKind rule = WeightKind::kNone;
  float max = 0;  // kExp
  // kReweight: x = gain * softplus - offset. The gain, N / sum, is in two parts because x may be a
  // small difference of numbers near 1.
  float gain = 0;
  float gain_rest = 0;
  float offset = 0;
  float inverse_peak = 0;
  float scale = 1;  // a power of two that brings weights into fp16's range
};

LSSAR_DEVICE float NormalizedScore(const WeightRule& row, float softplus) {
  return MulAdd(row.gain_rest, softplus, MulAdd(row.gain, softplus, -row.offset));
}

// The bound of kernels/cpu: below this peak, x in fp32 has too few digits left for u^p.
LSSAR_DEVICE float FlatPeak(float p) { return 0.03f * (p < 15.0f ? p : 15.0f); }

// 2^(to - exponent of x): x times it is in [2^to, 2^(to + 1)). 1 where x is zero or not finite.
LSSAR_DEVICE float PowerOfTwoFor(float x, int to) {
  const int exponent = int((BitsOfFloat(x) >> 23) & 0xFF);
  if (exponent == 0 || exponent == 0xFF) return 1.0f;
  int biased = 127 + to - (exponent - 127);
  if (biased > 227) biased = 227;
  return FloatOfBits(unsigned(biased) << 23);
}

// The rule of a row with num_keys keys, from the maximum and the sum of its scores: raw scores for
// softmax, softplus scores for the other kinds.
LSSAR_DEVICE WeightRule ReduceRow(const CudaAttentionArgs& args, int num_keys, float max,
                                  double sum) {
  WeightRule row;
  if (args.kind == AttentionKind::kSoftmax) {
    row.rule = WeightKind::kExp;
    row.max = max;
    row.scale = 0x1p15f;
    return row;
  }
  row.rule = WeightKind::kSoftplus;
  row.scale = PowerOfTwoFor(max, 14);
  if (args.kind == AttentionKind::kLssa) return row;
  const double gain = double(num_keys) / sum;
  row.gain = float(gain);
  row.gain_rest = float(gain - double(row.gain));
  row.offset = num_keys <= 3 ? 0.0f : 1.0f;
  const float peak = NormalizedScore(row, max);
  if (peak <= kDegeneratePeak / 2) return row;  // degenerate, whatever the peak's rounding error
  row.rule = peak < FlatPeak(args.p) ? WeightKind::kFlat : WeightKind::kReweight;
  row.inverse_peak = 1.0f / peak;
  row.scale = 0x1p15f;
  return row;
}

// The weight of a key with this score, before the division by the sum of weights.
LSSAR_DEVICE float WeightOf(const CudaAttentionArgs& args, const WeightRule& row, float score) {
  switch (row.rule) {
    case WeightKind::kReweight:
      return PowerOf(args, NormalizedScore(row, score) * row.inverse_peak);
    case WeightKind::kSoftplus: return score;
    case WeightKind::kExp: return ExpOfNegative(score - row.max);
    default: return 0.0f;
  }
}

// The factor of a row's dot products: ln(d) ln(N), or 1/sqrt(d) for softmax.
LSSAR_DEVICE double ScoreScale(const CudaAttentionArgs& args, int num_keys) {
  const double dim = double(args.pages.head_dim);
  if (args.kind == AttentionKind::kSoftmax) return 1.0 / sqrt(dim);
  return log(dim) * log(double(num_keys));
}

// The score after stage 1: softplus, or unchanged for softmax.
LSSAR_DEVICE float StageOne(const CudaAttentionArgs& args, float score) {
  return args.kind == AttentionKind::kSoftmax ? score : Softplus(score);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_ATTENTION_MATH_CUH_
