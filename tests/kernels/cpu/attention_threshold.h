// The threshold of a re-weighted row against its weights, on the selected instruction set.
#ifndef LSSAR_TESTS_KERNELS_CPU_ATTENTION_THRESHOLD_H_
#define LSSAR_TESTS_KERNELS_CPU_ATTENTION_THRESHOLD_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_spec.h"

namespace lssar {

// A row that Reduce gave a rule: its number of keys, the maximum of what Score stores (scores,
// or phi), and the sum of phi (softmax_r: of e^(score - max)).
struct ThresholdRow {
  AttentionSpec spec;
  int num_keys = 0;
  float max = 0;
  double sum = 0;
};

// The row's threshold. NaN if the row is flat or has no peak: its threshold decides other numbers.
float ThresholdOnCpu(const ThresholdRow& row);

// The weights that the row gives to these scores (or phi), one by one, whatever the threshold.
std::vector<float> WeightsOnCpu(const ThresholdRow& row, std::span<const float> scores);

// The indices of the scores above the threshold, as Weigh lists them.
// Requires  at most kChunkKeys scores
std::vector<int32_t> SurvivorsOnCpu(float threshold, std::span<const float> scores);

}  // namespace lssar

#endif  // LSSAR_TESTS_KERNELS_CPU_ATTENTION_THRESHOLD_H_
