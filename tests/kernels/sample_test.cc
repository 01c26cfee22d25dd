// Ids drawn from rows of logits: equal on every backend, with the expected frequencies.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops.h"
#include "tests/kernels/dense_cases.h"
#include "tests/kernels/sample_cases.h"

namespace lssar {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<int32_t> IdsOf(const std::vector<SampleResult>& rows) {
  std::vector<int32_t> ids;
  for (const SampleResult& row : rows) ids.push_back(row.id);
  return ids;
}

std::vector<int32_t> IdsOf(const std::map<int32_t, int>& histogram) {
  std::vector<int32_t> ids;
  for (const auto& [id, count] : histogram) ids.push_back(id);
  return ids;
}

std::vector<float> Copies(const std::vector<float>& logits, size_t num_rows) {
  std::vector<float> copies;
  for (size_t i = 0; i < num_rows; ++i) copies.insert(copies.end(), logits.begin(), logits.end());
  return copies;
}

class SampleTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Backend> backend_ = MakeNamed(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Backends, SampleTest, ::testing::ValuesIn(BackendNames()),
                         [](const auto& param) { return param.param; });

// Needs tens of thousands of draws. The emulated CUDA backend would run a thousand fibers for each,
// so it is not tested here: SampleTest compares its ids with the other backends.
class SampleDistributionTest : public SampleTest {};
INSTANTIATE_TEST_SUITE_P(Backends, SampleDistributionTest,
                         ::testing::Values("reference", InstructionSets().front()),
                         [](const auto& param) { return param.param; });

TEST_P(SampleTest, DrawsLikeTheReference) {
  const auto reference = MakeNamed("reference");
  for (const int vocab : {20, 333, 5000}) {
    const std::vector<float> logits = RandomLogits(size_t(vocab), uint32_t(vocab));
    for (SampleCase& c : SampleCases()) {
      c.params.seed = uint64_t(vocab);
      std::vector<SampleRequest> rows;
      for (int i = 0; i < 4; ++i) {
        rows.push_back(
            {.params = &c.params, .counts = kCaseCounts, .choice = i / 2, .position = 100 * i});
      }
      const std::vector<float> copies = Copies(logits, rows.size());
      EXPECT_EQ(IdsOf(RunSample(*backend_, copies, vocab, rows)),
                IdsOf(RunSample(*reference, copies, vocab, rows)))
          << c.name << ", vocabulary " << vocab;
    }
  }
}

TEST_P(SampleTest, DrawsLikeTheReferenceFromAFullVocabulary) {
  constexpr int kVocab = 50304;
  const auto reference = MakeNamed("reference");
  const std::vector<SampleCase> cases = SampleCases();
  std::vector<SampleRequest> rows;
  for (const SampleCase& c : cases) {
    rows.push_back({.params = &c.params, .counts = kCaseCounts, .position = int(rows.size())});
  }
  const std::vector<float> copies = Copies(RandomLogits(kVocab, 9), rows.size());
  EXPECT_EQ(IdsOf(RunSample(*backend_, copies, kVocab, rows)),
            IdsOf(RunSample(*reference, copies, kVocab, rows)));
}

TEST_P(SampleDistributionTest, EveryStageHasTheExpectedDistribution) {
  constexpr int kNumDraws = 20000;
  for (const size_t vocab : {30u, 300u}) {
    for (SampleCase& c : SampleCases()) {
      SCOPED_TRACE(testing::Message() << c.name << ", vocabulary " << vocab);
      const std::vector<float> logits = RandomLogits(vocab, 3);
      c.params.seed = vocab;
      const auto expected = NaiveDistribution(logits, c.params, kCaseCounts);
      const auto histogram = DrawHistogram(*backend_, logits, c.params, kCaseCounts, kNumDraws);
      for (const auto& [id, count] : histogram) {
        EXPECT_TRUE(expected.contains(id)) << "id " << id << " was drawn " << count << " times";
      }
      EXPECT_LT(ChiSquareDeviate(histogram, expected, kNumDraws), 4.0) << "chi-square too large";
      if (expected.size() == 1) {
        EXPECT_EQ(histogram.begin()->first, expected.begin()->first);
      }
    }
  }
}

TEST_P(SampleTest, EveryTopKGivesTheKBest) {
  const std::vector<float> logits = {0, 3, 1, 3, 2, 5, 3, -1};
  const std::vector<int32_t> ranked = {5, 1, 3, 6, 4, 2, 0, 7};
  for (size_t k = 1; k <= logits.size() + 1; ++k) {
    const SamplingParams params{.temperature = 50, .top_k = int(k)};
    std::vector<int32_t> want(ranked.begin(),
                              ranked.begin() + ptrdiff_t(std::min(k, ranked.size())));
    std::sort(want.begin(), want.end());
    EXPECT_EQ(IdsOf(DrawHistogram(*backend_, logits, params, {}, 100)), want) << k;
  }
}

// The exact limit of top-p: with equal probabilities 1/2^n the sums are exact.
TEST_P(SampleTest, TopPKeepsTheFewestSufficientIdsTiesById) {
  const SamplingParams params{.top_p = 0.25f};
  const std::vector<float> logits(256, 1.5f);
  const auto histogram = DrawHistogram(*backend_, logits, params, {}, 1000);
  EXPECT_EQ(histogram.size(), 64u);
  EXPECT_EQ(histogram.rbegin()->first, 63);
}

TEST_P(SampleTest, TopKBreaksTiesById) {
  std::vector<float> logits(100, 0.0f);
  logits[90] = 1.0f;
  logits[5] = -0.0f;  // equal to 0
  const SamplingParams params{.top_k = 7};
  EXPECT_EQ(IdsOf(DrawHistogram(*backend_, logits, params, {}, 100)),
            (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 90}));
}

TEST_P(SampleTest, GreedyTakesTheLowestOfEqualBest) {
  const SamplingParams greedy{.temperature = 0};
  for (const size_t vocab : {2u, 20u, 63u, 1000u, 4099u}) {
    std::vector<float> logits = RandomFloats(vocab, 1);
    logits[vocab / 2] = logits[vocab - 1] = logits[vocab / 3] = 9;
    const SampleResult row = RunSampleOfRow(*backend_, logits, {.params = &greedy, .counts = {}});
    EXPECT_EQ(row.id, int32_t(vocab / 3));
    EXPECT_TRUE(row.is_best);
  }
}

TEST_P(SampleTest, IsBestIsTheLowestIdOfTheLargestLogit) {
  std::vector<float> logits = RandomFloats(2000, 1);
  logits[700] = logits[1500] = 9;
  const auto is_best = [&](int32_t target) {
    return RunSampleOfRow(*backend_, logits, {.target = target, .counts = {}}).is_best;
  };
  EXPECT_TRUE(is_best(700));
  EXPECT_FALSE(is_best(1500));
  EXPECT_FALSE(is_best(0));
  EXPECT_FALSE(is_best(1999));
  // is_best is about the logits, not about the adjusted scores.
  const SamplingParams biased{.temperature = 0, .logit_bias = {{3, 100.0f}}};
  const SampleResult row = RunSampleOfRow(*backend_, logits, {.params = &biased, .counts = {}});
  EXPECT_EQ(row.id, 3);
  EXPECT_FALSE(row.is_best);
}

TEST_P(SampleTest, DrawsDependOnlyOnRowSeedChoiceAndPosition) {
  constexpr int kVocab = 700;
  const SamplingParams params{.top_p = 0.95f, .seed = 42};
  const SamplingParams reseeded{.top_p = 0.95f, .seed = 43};
  const SamplingParams penalised{.top_k = 9, .repetition_penalty = 2};
  const std::vector<float> logits = RandomLogits(kVocab, 5);
  std::vector<SampleRequest> rows, others;
  for (int position = 0; position < 60; ++position) {
    rows.push_back({.params = &params, .counts = {}, .position = position});
    others.push_back({.params = &params, .counts = {}, .choice = 1, .position = position});
  }
  for (int position = 0; position < 60; ++position) {
    others.push_back({.params = &reseeded, .counts = {}, .position = position});
  }
  std::vector<int32_t> alone;
  for (const SampleRequest& row : rows) alone.push_back(RunSampleOfRow(*backend_, logits, row).id);
  EXPECT_EQ(IdsOf(RunSample(*backend_, Copies(logits, rows.size()), kVocab, rows)), alone);

  // In a batch with other kinds of rows.
  std::vector<SampleRequest> mixed;
  std::vector<float> mixed_logits;
  for (size_t i = 0; i < rows.size(); ++i) {
    mixed.push_back({.params = &penalised, .counts = kCaseCounts});
    mixed.push_back(rows[i]);
    const std::vector<float> other = RandomLogits(kVocab, uint32_t(100 + i));
    mixed_logits.insert(mixed_logits.end(), other.begin(), other.end());
    mixed_logits.insert(mixed_logits.end(), logits.begin(), logits.end());
  }
  const std::vector<int32_t> ids = IdsOf(RunSample(*backend_, mixed_logits, kVocab, mixed));
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(ids[2 * i + 1], alone[i]);

  const auto other_ids = IdsOf(RunSample(*backend_, Copies(logits, others.size()), kVocab, others));
  int num_equal_choice = 0, num_equal_seed = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    num_equal_choice += other_ids[i] == alone[i];
    num_equal_seed += other_ids[i + rows.size()] == alone[i];
  }
  EXPECT_LT(num_equal_choice, 30);
  EXPECT_LT(num_equal_seed, 30);
}

// Two ways to say the same set: a mask draws what allowed ids draw, and leaves log-probabilities.
TEST_P(SampleTest, AMaskDrawsAsItsAllowedIdsDo) {
  for (const int vocab : {20, 33, 64, 333, 5000}) {
    const std::vector<float> logits = RandomLogits(size_t(vocab), uint32_t(vocab));
    for (SampleCase& c : SampleCases()) {
      if (!c.params.allowed_ids.empty()) continue;
      c.params.seed = uint64_t(vocab);
      SamplingParams allowed = c.params;
      std::vector<uint32_t> mask(NumMaskWords(size_t(vocab)));
      for (int id = 2; id < vocab; id += id % 7 + 1) {
        allowed.allowed_ids.push_back(id);
        mask[size_t(id) / 32] |= 1u << (id % 32);
      }
      allowed.allowed_ids.push_back(vocab - 1);
      mask[size_t(vocab - 1) / 32] |= 1u << ((vocab - 1) % 32);
      std::vector<SampleRequest> masked, listed;
      for (int i = 0; i < 3; ++i) {
        masked.push_back({.params = &c.params,
                          .counts = kCaseCounts,
                          .mask = mask,
                          .position = 100 * i,
                          .num_logprobs = 2});
        listed.push_back(
            {.params = &allowed, .counts = kCaseCounts, .position = 100 * i, .num_logprobs = 2});
      }
      // One row without a mask beside them.
      masked.push_back({.params = &c.params, .counts = kCaseCounts, .num_logprobs = 2});
      listed.push_back(masked.back());
      const std::vector<float> copies = Copies(logits, masked.size());
      const std::vector<SampleResult> got = RunSample(*backend_, copies, vocab, masked);
      const std::vector<SampleResult> expected = RunSample(*backend_, copies, vocab, listed);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].id, expected[i].id) << c.name << ", vocabulary " << vocab << ", row " << i;
        EXPECT_EQ(got[i].logprob, expected[i].logprob);
        EXPECT_EQ(got[i].top[0].id, expected[i].top[0].id);
      }
    }
  }
}

TEST_P(SampleTest, AMaskAndListsOfIdsBothHold) {
  const std::vector<float> logits(70, 1.0f);
  std::vector<uint32_t> mask = {0, 0x30u, 0x2u};  // 36, 37, 65
  const SamplingParams params{.temperature = 0, .allowed_ids = {37, 65, 1}, .banned_ids = {37}};
  EXPECT_EQ(RunSampleOfRow(*backend_, logits, {.params = &params, .counts = {}, .mask = mask}).id,
            65);
}

TEST_P(SampleTest, ExtremeScoresStayInRange) {
  const std::vector<float> logits = {-kLargest, 3, kLargest, kLargest, -kLargest};
  const std::vector<TokenCount> counts = {{0, 1}, {2, 2}};
  for (const float temperature : {0.0f, std::numeric_limits<float>::denorm_min(), 1.0f, 100.0f}) {
    const SamplingParams params{.temperature = temperature};
    EXPECT_GE(RunSampleOfRow(*backend_, logits, {.params = &params, .counts = {}}).id, 2);
    // Unclamped, -largest * 10 and largest + 100 would be infinite.
    const SamplingParams adjusted{.temperature = temperature,
                                  .repetition_penalty = 10,
                                  .logit_bias = {{2, -100.0f}, {3, 100.0f}}};
    EXPECT_EQ(RunSampleOfRow(*backend_, logits, {.params = &adjusted, .counts = counts}).id, 3);
    // Only the id with the lowest score is allowed.
    const SamplingParams forced{
        .temperature = temperature, .repetition_penalty = 10, .allowed_ids = {0, 0}};
    EXPECT_EQ(RunSampleOfRow(*backend_, logits, {.params = &forced, .counts = counts}).id, 0);
  }
}

TEST_P(SampleTest, AVocabularyOfOneHasOneResult) {
  const SamplingParams params{.top_k = 5, .top_p = 0.1f, .min_p = 1};
  const SampleResult row =
      RunSampleOfRow(*backend_, {-7.5f}, {.params = &params, .counts = {}, .num_logprobs = 1});
  EXPECT_EQ(row.id, 0);
  EXPECT_EQ(row.logprob, 0.0f);
  ASSERT_EQ(row.top.size(), 1u);
  EXPECT_EQ(row.top[0].id, 0);
}

}  // namespace
}  // namespace lssar
