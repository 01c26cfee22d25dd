#include "tests/kernels/cpu/attention_threshold.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/cpu/attention_threshold.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_rule-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

[[maybe_unused]] constexpr auto kUnused = &ApplyOtherPhi;

WeightRule RuleOf(const ThresholdRow& row) {
  return ReduceRow(row.spec, ReweightPower(row.spec.p), row.num_keys, row.max, row.sum);
}

void ThresholdOfTarget(const ThresholdRow& row, float* threshold) {
  const WeightRule rule = RuleOf(row);
  const bool is_peaked = rule.kind == WeightKind::kReweight ||
                         rule.kind == WeightKind::kReweightSoftplus ||
                         rule.kind == WeightKind::kReweightExp;
  *threshold = is_peaked ? rule.threshold : std::numeric_limits<float>::quiet_NaN();
}

void WeightsOfTarget(const ThresholdRow& row, std::span<float> scores) {
  const WeightRule rule = RuleOf(row);
  const ReweightPower power(row.spec.p);
  HWY_ALIGN float chunk[kChunkKeys];
  for (size_t i = 0; i < scores.size(); i += kChunkKeys) {
    const size_t count = std::min(scores.size() - i, size_t{kChunkKeys});
    std::fill_n(chunk, kChunkKeys, row.max);
    std::copy_n(scores.data() + i, count, chunk);
    int64_t num_read = 0;
    WeighSurvivors(rule, power, chunk, count, &num_read);
    std::copy_n(chunk, count, scores.data() + i);
  }
}

void SurvivorsOfTarget(float threshold, std::span<const float> scores, std::vector<int32_t>* keys) {
  HWY_ALIGN float chunk[kChunkKeys];
  std::fill_n(chunk, kChunkKeys, std::numeric_limits<float>::infinity());
  std::copy(scores.begin(), scores.end(), chunk);
  keys->resize(size_t{kChunkKeys} + kVectorFloats);
  keys->resize(KeepSurvivors(threshold, chunk, scores.size(), nullptr, keys->data()));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(ThresholdOfTarget);
HWY_EXPORT(WeightsOfTarget);
HWY_EXPORT(SurvivorsOfTarget);

float ThresholdOnCpu(const ThresholdRow& row) {
  float threshold = 0;
  HWY_DYNAMIC_DISPATCH(ThresholdOfTarget)(row, &threshold);
  return threshold;
}

std::vector<float> WeightsOnCpu(const ThresholdRow& row, std::span<const float> scores) {
  std::vector<float> weights(scores.begin(), scores.end());
  HWY_DYNAMIC_DISPATCH(WeightsOfTarget)(row, weights);
  return weights;
}

std::vector<int32_t> SurvivorsOnCpu(float threshold, std::span<const float> scores) {
  std::vector<int32_t> keys;
  HWY_DYNAMIC_DISPATCH(SurvivorsOfTarget)(threshold, scores, &keys);
  return keys;
}

}  // namespace lssar
#endif  // HWY_ONCE
