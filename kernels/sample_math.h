// Arithmetic of Sample that the cpu and cuda backends share, so that they draw the same ids.
//
// Weights are integers. Their sums are exact in any order, so lanes, threads and blocks may add
// them in any order without changing a result.
#ifndef LSSAR_KERNELS_SAMPLE_MATH_H_
#define LSSAR_KERNELS_SAMPLE_MATH_H_

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/sampling.h"

namespace lssar {

// The best id's weight is 2^42; the sum over 2^20 ids still fits.
inline constexpr int kWeightBits = 42;
inline constexpr int kMaxSampleVocab = 1 << 20;

// The score of an id that must not be drawn. Its weight is 0 and it ranks last.
inline constexpr float kNotAllowed = -std::numeric_limits<float>::infinity();

// Rounds to fp32 and clamps to its finite range; kNotAllowed stays kNotAllowed.
constexpr float ClampToFloat(double score) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (score > kLargest) return std::numeric_limits<float>::max();
  if (score < -kLargest && score > double{kNotAllowed}) return -std::numeric_limits<float>::max();
  return float(score);
}

constexpr float Biased(float score, float bias) {
  return ClampToFloat(double(score) + double(bias));
}

struct Penalties {
  double repetition = 1;
  double presence = 0;
  double frequency = 0;
};

constexpr float Penalised(float score, int num_in_output, const Penalties& penalties) {
  double x = score;
  x = x > 0 ? x / penalties.repetition : x * penalties.repetition;
  if (num_in_output > 0) x -= penalties.presence + num_in_output * penalties.frequency;
  return ClampToFloat(x);
}

// Keys have the order of scores. Equal scores have equal keys, also -0 and 0.
constexpr uint32_t RankKey(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// Keys of a row's ids, all different: equal scores rank by id, the lowest first.
constexpr uint64_t RankOf(float score, int32_t id) {
  return (uint64_t{RankKey(score)} << 20) | uint64_t(kMaxSampleVocab - 1 - id);
}
constexpr int32_t IdOfRank(uint64_t rank) {
  return kMaxSampleVocab - 1 - int32_t(rank % kMaxSampleVocab);
}
constexpr float ScoreOfRank(uint64_t rank) {
  const uint32_t key = uint32_t(rank >> 20);
  return std::bit_cast<float>((key >> 31) != 0 ? key & 0x7FFFFFFFu : ~key);
}

// log2(e) / temperature: the factor of a weight's exponent. kRateOfLogprobs: temperature 1.
inline constexpr float kRateOfLogprobs = 1.44269504f;
constexpr float WeightRate(float temperature) {
  const double rate = 1.4426950408889634 / double(temperature);
  return ClampToFloat(rate);
}

// 2^exponent = 2^n 2^f, |f| <= 1/2, and 2^f = sum (f ln 2)^k / k! for k up to 7: error 5e-9.
inline constexpr float kExp2Term1 = 6.93147181e-1f;
inline constexpr float kExp2Term2 = 2.40226507e-1f;
inline constexpr float kExp2Term3 = 5.55041087e-2f;
inline constexpr float kExp2Term4 = 9.61812911e-3f;
inline constexpr float kExp2Term5 = 1.33335581e-3f;
inline constexpr float kExp2Term6 = 1.54035304e-4f;
inline constexpr float kExp2Term7 = 1.52527338e-5f;
inline constexpr float kLowestExponent = -63.0f;     // the weight is 0 well above this
inline constexpr float kRoundToWhole = 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
inline constexpr float kMantissaScale = 16777216.0f;

// mantissa / 2^24 times 2^-shift, in units of 2^-kWeightBits.
constexpr uint64_t ScaledWeight(int32_t mantissa, int32_t shift) {
  return (uint64_t(mantissa) << (kWeightBits - 24)) >> shift;
}

// e^((score - best) / temperature) in units of 2^-42, rounded down.
// Requires  score <= best
// Accuracy  relative error 1.5e-7 (1 + |exponent|) before rounding
constexpr uint64_t WeightOf(float score, float best, float rate) {
  float exponent = (score - best) * rate;
  if (exponent < kLowestExponent) exponent = kLowestExponent;
  const float whole = (exponent + kRoundToWhole) - kRoundToWhole;
  const float fraction = exponent - whole;
  float power = kExp2Term7;
  power = power * fraction + kExp2Term6;
  power = power * fraction + kExp2Term5;
  power = power * fraction + kExp2Term4;
  power = power * fraction + kExp2Term3;
  power = power * fraction + kExp2Term2;
  power = power * fraction + kExp2Term1;
  power = power * fraction + 1.0f;
  return ScaledWeight(int32_t(power * kMantissaScale), int32_t(-whole));
}

// The least weight that passes min-p.
constexpr uint64_t LeastWeight(float min_p) {
  const double least = double(min_p) * (uint64_t{1} << kWeightBits);
  const uint64_t whole = uint64_t(least);
  return double(whole) < least ? whole + 1 : whole;
}

// The sum of weights that top-p must reach; >= 1.
constexpr uint64_t WantedWeight(float top_p, uint64_t total) {
  const uint64_t wanted = uint64_t(double(top_p) * double(total));
  if (wanted >= total) return total;
  return wanted == 0 ? 1 : wanted;
}

// floor(draw * total / 2^64): in [0, total), uniform if draw is uniform over 64 bits.
constexpr uint64_t ScaledDraw(uint64_t draw, uint64_t total) {
  const uint64_t a = draw >> 32, b = draw & 0xFFFFFFFF;
  const uint64_t c = total >> 32, d = total & 0xFFFFFFFF;
  const uint64_t middle = a * d + ((b * d) >> 32);
  return a * c + (middle >> 32) + ((b * c + (middle & 0xFFFFFFFF)) >> 32);
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_SAMPLE_MATH_H_
