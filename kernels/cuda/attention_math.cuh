// How scores become weights: the same instructions for a decode step and for a row of a prompt.
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
// Source  minimax polynomial (Remez) of (t - ln(1 + t)) / t^2 on [0, 1], t = e^-|s|: no division,
//         and the special function unit is asked once
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
LSSAR_DEVICE float Sharpen(const CudaAttentionArgs& args, float u) {
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

enum class CudaRule : int {
  kNone,      // no such row
  kSharpen,   // from softplus scores
  kSoftplus,  // the softplus scores themselves
  kExp,       // e^(score - max)
  kFlat,      // a row so flat that AttendFlat takes its scores again, in double
};

struct RowRule {
  CudaRule rule = CudaRule::kNone;
  float max = 0;  // kExp
  // kSharpen: x = gain * softplus - offset. The gain, N / sum, in two parts: x may be a small
  // difference of numbers near 1.
  float gain = 0;
  float gain_rest = 0;
  float offset = 0;
  float inverse_peak = 0;
  float scale = 1;  // a power of two: weights times it make good use of fp16's range
};

LSSAR_DEVICE float Sharpness(const RowRule& row, float softplus) {
  return MulAdd(row.gain_rest, softplus, MulAdd(row.gain, softplus, -row.offset));
}

// As kernels/cpu has it: below this peak fp32 leaves too little of x for the power to follow.
LSSAR_DEVICE float FlatPeak(float p) { return 0.03f * (p < 15.0f ? p : 15.0f); }

// 2^(to - exponent of x): x times it is in [2^to, 2^(to + 1)). 1 where x is zero or not finite.
LSSAR_DEVICE float PowerOfTwoFor(float x, int to) {
  const int exponent = static_cast<int>((BitsOfFloat(x) >> 23) & 0xFF);
  if (exponent == 0 || exponent == 0xFF) return 1.0f;
  int biased = 127 + to - (exponent - 127);
  if (biased > 227) biased = 227;
  return FloatOfBits(static_cast<unsigned>(biased) << 23);
}

// The rule of a row of num_keys keys whose scores (softplus ones but for softmax) have this maximum
// and sum.
LSSAR_DEVICE RowRule ReduceRow(const CudaAttentionArgs& args, int num_keys, float max, double sum) {
  RowRule row;
  if (args.kind == AttentionKind::kSoftmax) {
    row.rule = CudaRule::kExp;
    row.max = max;
    row.scale = 0x1p15f;
    return row;
  }
  row.rule = CudaRule::kSoftplus;
  row.scale = PowerOfTwoFor(max, 14);
  if (args.kind == AttentionKind::kLssa) return row;
  const double gain = static_cast<double>(num_keys) / sum;
  row.gain = static_cast<float>(gain);
  row.gain_rest = static_cast<float>(gain - static_cast<double>(row.gain));
  row.offset = num_keys <= 3 ? 0.0f : 1.0f;
  const float peak = Sharpness(row, max);
  if (peak <= kDegeneratePeak / 2) return row;  // whatever rounding did to its peak
  row.rule = peak < FlatPeak(args.p) ? CudaRule::kFlat : CudaRule::kSharpen;
  row.inverse_peak = 1.0f / peak;
  row.scale = 0x1p15f;
  return row;
}

// The weight, up to the division by their sum, of a key with this score.
LSSAR_DEVICE float WeightOf(const CudaAttentionArgs& args, const RowRule& row, float score) {
  switch (row.rule) {
    case CudaRule::kSharpen: return Sharpen(args, Sharpness(row, score) * row.inverse_peak);
    case CudaRule::kSoftplus: return score;
    case CudaRule::kExp: return ExpOfNegative(score - row.max);
    default: return 0.0f;
  }
}

// ln(d) ln(N), or 1/sqrt(d): what a row's dot products are multiplied by.
LSSAR_DEVICE double ScoreScale(const CudaAttentionArgs& args, int num_keys) {
  const double dim = static_cast<double>(args.pages.head_dim);
  if (args.kind == AttentionKind::kSoftmax) return 1.0 / sqrt(dim);
  return log(dim) * log(static_cast<double>(num_keys));
}

// What stage 1 keeps of a score.
LSSAR_DEVICE float StageOne(const CudaAttentionArgs& args, float score) {
  return args.kind == AttentionKind::kSoftmax ? score : Softplus(score);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_ATTENTION_MATH_CUH_
