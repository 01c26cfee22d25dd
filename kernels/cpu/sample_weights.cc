#include "kernels/cpu/sample_weights.h"

#include <algorithm>
#include <cstddef>

#include "kernels/sample_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sample_weights.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
constexpr size_t kLanes = hn::MaxLanes(FloatTag());

// The two parts of WeightOf with the same operations; no multiply-add is fused.
HWY_INLINE void WeighLanes(FloatVec scores, FloatVec best, FloatVec rate, int32_t* mantissas,
                           int32_t* shifts) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> d_int;
  FloatVec exponent = hn::Mul(hn::Sub(scores, best), rate);
  exponent = hn::Max(exponent, hn::Set(d, kLowestExponent));
  const FloatVec round = hn::Set(d, kRoundToWhole);
  const FloatVec whole = hn::Sub(hn::Add(exponent, round), round);
  const FloatVec fraction = hn::Sub(exponent, whole);
  FloatVec power = hn::Set(d, kExp2Term7);
  power = hn::Add(hn::Mul(power, fraction), hn::Set(d, kExp2Term6));
  power = hn::Add(hn::Mul(power, fraction), hn::Set(d, kExp2Term5));
  power = hn::Add(hn::Mul(power, fraction), hn::Set(d, kExp2Term4));
  power = hn::Add(hn::Mul(power, fraction), hn::Set(d, kExp2Term3));
  power = hn::Add(hn::Mul(power, fraction), hn::Set(d, kExp2Term2));
  power = hn::Add(hn::Mul(power, fraction), hn::Set(d, kExp2Term1));
  power = hn::Add(hn::Mul(power, fraction), hn::Set(d, 1.0f));
  hn::Store(hn::ConvertTo(d_int, hn::Mul(power, hn::Set(d, kMantissaScale))), d_int, mantissas);
  hn::Store(hn::ConvertTo(d_int, hn::Neg(whole)), d_int, shifts);
}

void WeighScoresInLanes(const float* scores, size_t count, float best, float rate,
                        uint64_t* weights) {
  const FloatTag d;
  HWY_ALIGN int32_t mantissas[kLanes];
  HWY_ALIGN int32_t shifts[kLanes];
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    WeighLanes(hn::LoadU(d, scores + i), hn::Set(d, best), hn::Set(d, rate), mantissas, shifts);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      weights[i + lane] = ScaledWeight(mantissas[lane], shifts[lane]);
    }
  }
  for (; i < count; ++i) weights[i] = WeightOf(scores[i], best, rate);
}

uint64_t SumOfWeightsInLanes(const float* scores, size_t count, float best, float rate) {
  constexpr size_t kBlock = 256;
  uint64_t weights[kBlock];
  uint64_t sum = 0;
  for (size_t block = 0; block < count; block += kBlock) {
    const size_t num = std::min(kBlock, count - block);
    WeighScoresInLanes(scores + block, num, best, rate, weights);
    for (size_t i = 0; i < num; ++i) sum += weights[i];
  }
  return sum;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(WeighScoresInLanes);
HWY_EXPORT(SumOfWeightsInLanes);

void WeighScores(std::span<const float> scores, float best, float rate, uint64_t* weights) {
  HWY_DYNAMIC_DISPATCH(WeighScoresInLanes)(scores.data(), scores.size(), best, rate, weights);
}

uint64_t SumOfWeights(std::span<const float> scores, float best, float rate) {
  return HWY_DYNAMIC_DISPATCH(SumOfWeightsInLanes)(scores.data(), scores.size(), best, rate);
}

}  // namespace lssar
#endif  // HWY_ONCE
