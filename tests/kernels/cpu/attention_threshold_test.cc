// Weigh computes powers only for scores above the row's threshold. Every other score must have a
// weight of zero: the floats next to the threshold, and samples of the others.
#include "tests/kernels/cpu/attention_threshold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/cpu/instruction_set.h"

namespace lssar {
namespace {

// phi of what Score stores, in the unit of `sum`, and its inverse.
double PhiOfStored(const ThresholdRow& row, double stored) {
  switch (row.spec.Form().phi) {
    case Phi::kSoftplus:
      return std::max(stored, 0.0) + std::log1p(std::exp2(-std::fabs(stored))) / std::log(2.0);
    case Phi::kExp: return std::exp(stored - double{row.max});
    default: return stored;
  }
}

double StoredOfPhi(const ThresholdRow& row, double phi) {
  switch (row.spec.Form().phi) {
    case Phi::kSoftplus: return phi + std::log2(-std::expm1(-phi * std::log(2.0)));
    case Phi::kExp: return double{row.max} + std::log(phi);
    default: return phi;
  }
}

// Rows with a peak: their maximum is `ratio` times their mean.
std::vector<ThresholdRow> Rows() {
  std::mt19937 random(5);
  std::vector<ThresholdRow> rows;
  for (const AttentionKind kind :
       {AttentionKind::kLssar, AttentionKind::kSoftmaxR, AttentionKind::kSigmoidR}) {
    for (const double p : {0.5, 1.0, 2.5, 3.0, 15.0, 50.0}) {  // below 0.5 no row has a threshold
      for (const int num_keys : {2, 5, 300, 16384}) {
        for (const double ratio : {1.6, 2.0, 5.0, 100.0}) {
          if (ratio > num_keys) continue;
          ThresholdRow row{.spec = {.kind = kind, .p = p}, .num_keys = num_keys};
          const double most = kind == AttentionKind::kSigmoidR ? 1.0 : 55.0;
          const double least = kind == AttentionKind::kSigmoidR ? 1e-6 : -30.0;
          row.max = static_cast<float>(std::uniform_real_distribution<>(least, most)(random));
          row.sum = num_keys * PhiOfStored(row, double{row.max}) / ratio;
          rows.push_back(row);
        }
      }
    }
  }
  return rows;
}

class AttentionThresholdTest : public testing::TestWithParam<InstructionSet> {
 protected:
  AttentionThresholdTest() { ChooseInstructionSet(GetParam()); }
  ~AttentionThresholdTest() override { ChooseInstructionSet(UsableInstructionSets().front()); }
};

TEST_P(AttentionThresholdTest, NoScoreUpToItHasAWeight) {
  constexpr int kNear = 3000;
  int num_peaked = 0, num_without = 0;
  for (const ThresholdRow& row : Rows()) {
    const float threshold = ThresholdOnCpu(row);
    if (std::isnan(threshold)) continue;
    ++num_peaked;
    if (std::isinf(threshold)) {  // o = 0 and no phi is negligible
      ++num_without;
      continue;
    }
    std::vector<float> scores;
    float score = threshold;
    for (int i = 0; i < kNear; ++i) {
      scores.push_back(score);
      score = std::nextafter(score, -std::numeric_limits<float>::infinity());
    }
    const double least = row.spec.kind == AttentionKind::kSigmoidR ? 0.0 : -140.0;
    for (int i = 0; i < kNear; ++i) {
      scores.push_back(static_cast<float>(least + (double{threshold} - least) * i / kNear));
    }
    const std::vector<float> weights = WeightsOnCpu(row, scores);
    for (size_t i = 0; i < scores.size(); ++i) {
      ASSERT_EQ(weights[i], 0.0f) << scores[i] << " of threshold " << threshold << ", kind "
                                  << NameOf(row.spec.kind) << ", p " << row.spec.p << ", "
                                  << row.num_keys << " keys, max " << row.max;
    }
    // It is not far below the first score with a weight. The bound of u has a margin of 1e-3 / p.
    const float above = static_cast<float>(
        StoredOfPhi(row, PhiOfStored(row, double{threshold}) * (1 + 4e-5 + 2e-3 / row.spec.p)));
    if (above > row.max) continue;
    EXPECT_GT(WeightsOnCpu(row, std::vector<float>{above, row.max}).front(), 0.0f)
        << above << " of threshold " << threshold << ", kind " << NameOf(row.spec.kind) << ", p "
        << row.spec.p << ", " << row.num_keys << " keys, max " << row.max;
    EXPECT_EQ(WeightsOnCpu(row, std::vector<float>{row.max}).front(), 1.0f);
  }
  EXPECT_GT(num_peaked, 200);
  EXPECT_LT(num_without, num_peaked / 2);
}

TEST_P(AttentionThresholdTest, ListsTheScoresAboveIt) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (const size_t count : {0, 1, 15, 16, 17, 100, 255, 256}) {
    std::vector<float> scores(count);
    for (float& score : scores) score = normal(random);
    if (count > 2) scores[1] = 0.5f;  // equal: not above
    if (count > 2) scores[2] = std::nextafter(0.5f, 1.0f);
    std::vector<int32_t> expected;
    for (size_t i = 0; i < count; ++i) {
      if (scores[i] > 0.5f) expected.push_back(static_cast<int32_t>(i));
    }
    EXPECT_EQ(SurvivorsOnCpu(0.5f, scores), expected) << count;
    EXPECT_EQ(SurvivorsOnCpu(-std::numeric_limits<float>::infinity(), scores).size(), count);
    EXPECT_TRUE(SurvivorsOnCpu(100.0f, scores).empty());
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, AttentionThresholdTest,
                         testing::ValuesIn(UsableInstructionSets()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace lssar
