// Log-probabilities of rows of logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops.h"
#include "tests/kernels/dense_cases.h"
#include "tests/kernels/sample_cases.h"

namespace lssar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SampleRequest Target(int32_t target, int num_logprobs) {
  return {.target = target, .counts = {}, .num_logprobs = num_logprobs};
}

SampleResult RunTarget(Backend& backend, const std::vector<float>& logits, int32_t target,
                       int num_logprobs) {
  return RunSampleOfRow(backend, logits, Target(target, num_logprobs));
}

double LogSumExp(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  return max + std::log(sum);
}

TEST(LogprobsTest, MatchesTheDefinition) {
  for (const auto& backend : AllBackends()) {
    for (const int vocab : {1, 2, 15, 16, 17, 63, 64, 65, 129, 1000, 50257}) {
      const std::vector<float> logits = RandomFloats(size_t(vocab), uint32_t(vocab), 4);
      const double log_sum = LogSumExp(logits);
      const auto expect_close = [&](float got, int32_t id) {
        const double want = double{logits[size_t(id)]} - log_sum;
        EXPECT_LE(std::abs(double{got} - want), 2e-6 * std::max(1.0, std::abs(want)))
            << backend->Describe() << " vocabulary " << vocab << " id " << id;
      };
      std::vector<int32_t> ids(static_cast<size_t>(vocab));
      std::iota(ids.begin(), ids.end(), 0);
      std::sort(ids.begin(), ids.end(),
                [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
      for (const int num_top : {0, 1, 5, 20, std::min(vocab, 1000)}) {
        if (num_top > vocab) continue;
        const int32_t target = vocab / 3;
        const SampleResult row = RunTarget(*backend, logits, target, num_top);
        EXPECT_TRUE(row.finite);
        expect_close(row.logprob, target);
        ASSERT_EQ(row.top.size(), size_t(num_top));
        for (size_t i = 0; i < row.top.size(); ++i) {
          expect_close(row.top[i].logprob, row.top[i].id);
          // Distinct logits may round to the same logprob; then they rank by id.
          EXPECT_NEAR(logits[size_t(row.top[i].id)], logits[size_t(ids[i])], 2e-6);
          if (row.top[i].id == target) {
            EXPECT_EQ(row.top[i].logprob, row.logprob);
          }
          if (i == 0) continue;
          EXPECT_TRUE(
              row.top[i - 1].logprob > row.top[i].logprob ||
              (row.top[i - 1].logprob == row.top[i].logprob && row.top[i - 1].id < row.top[i].id));
        }
      }
    }
  }
}

TEST(LogprobsTest, EqualLogprobsRankByRisingId) {
  std::vector<float> logits(200, 1.0f);
  logits[150] = logits[7] = logits[99] = 3.0f;
  for (const auto& backend : AllBackends()) {
    const SampleResult row = RunTarget(*backend, logits, 150, 6);
    std::vector<int32_t> ids;
    for (const TokenLogprob& entry : row.top) ids.push_back(entry.id);
    EXPECT_EQ(ids, (std::vector<int32_t>{7, 99, 150, 0, 1, 2})) << backend->Describe();
  }
}

TEST(LogprobsTest, LogitsThatRoundToOneLogprobRankByRisingId) {
  // 40 below the largest, the fp32 spacing of logprobs is wider than that of these logits.
  std::vector<float> logits(80, -1.0f);
  logits[0] = 40.0f;
  logits[70] = 0x1.000002p-1f;
  logits[3] = 0x1p-1f;
  for (const auto& backend : AllBackends()) {
    const SampleResult row = RunTarget(*backend, logits, 3, 3);
    ASSERT_EQ(row.top.size(), 3u);
    EXPECT_EQ(row.top[1].logprob, row.top[2].logprob);
    EXPECT_EQ(row.top[1].id, 3) << backend->Describe();
    EXPECT_EQ(row.top[2].id, 70) << backend->Describe();
    EXPECT_EQ(row.logprob, row.top[1].logprob);
  }
}

TEST(LogprobsTest, ExtremeLogitsStayFinite) {
  const std::vector<float> logits = {-3e38f, 3e38f, 0.0f};
  for (const auto& backend : AllBackends()) {
    const SampleResult row = RunTarget(*backend, logits, 1, 1);
    EXPECT_TRUE(row.finite) << backend->Describe();
    EXPECT_EQ(row.logprob, 0.0f) << backend->Describe();
    EXPECT_EQ(row.top[0].id, 1) << backend->Describe();
  }
}

TEST(LogprobsTest, ARowThatIsNotFiniteIsReported) {
  constexpr int kVocab = 90;
  const SamplingParams hot, greedy{.temperature = 0};
  const std::vector<SampleRequest> rows = {Target(1, 2),
                                           Target(2, 2),
                                           Target(3, 2),
                                           {.params = &hot, .counts = {}, .num_logprobs = 2},
                                           {.params = &greedy, .counts = {}}};
  for (const auto& backend : AllBackends()) {
    for (const float poison : {kNan, kInfinity, -kInfinity}) {
      for (const size_t place : {size_t{0}, size_t{40}, size_t{89}}) {
        std::vector<float> logits = RandomFloats(5 * kVocab, 1);
        for (const size_t row : {1, 3, 4}) logits[row * kVocab + place] = poison;
        const auto out = RunSample(*backend, logits, kVocab, rows);
        for (const size_t row : {1, 3, 4}) {
          EXPECT_FALSE(out[row].finite) << backend->Describe() << " " << poison << " at " << place;
          EXPECT_EQ(out[row].logprob, 0.0f);
          EXPECT_TRUE(out[row].top.empty());
        }
        for (const size_t row : {0, 2}) {
          EXPECT_TRUE(out[row].finite);
          EXPECT_EQ(out[row].top.size(), 2u);
        }
      }
    }
  }
}

// A drawn id and a given id have the same log-probability and rank.
TEST(LogprobsTest, DrawnAndGivenIdsHaveTheSameBits) {
  const std::vector<float> logits = RandomLogits(1000, 3);
  const SamplingParams adjusted{.temperature = 3, .logit_bias = {{8, 50.0f}}};
  for (const auto& backend : AllBackends()) {
    for (int position = 0; position < 3; ++position) {
      const SampleResult drawn = RunSampleOfRow(
          *backend, logits,
          {.params = &adjusted, .counts = {}, .position = position, .num_logprobs = 20});
      const SampleResult given = RunTarget(*backend, logits, drawn.id, 20);
      EXPECT_EQ(drawn.logprob, given.logprob) << backend->Describe();
      ASSERT_EQ(drawn.top.size(), 20u);
      for (size_t i = 0; i < 20; ++i) {
        EXPECT_EQ(drawn.top[i].id, given.top[i].id) << backend->Describe();
        EXPECT_EQ(drawn.top[i].logprob, given.top[i].logprob) << backend->Describe();
      }
    }
  }
}

TEST(LogprobsTest, BitsDependOnlyOnTheRow) {
  constexpr int kVocab = 3001, kRows = 9;
  const std::vector<float> logits = RandomFloats(kRows * kVocab, 1, 3);
  std::vector<SampleRequest> rows;
  for (int32_t row = 0; row < kRows; ++row) rows.push_back(Target(row, 4));
  const auto expect_same = [&](Backend& one, Backend& other) {
    const auto together = RunSample(other, logits, kVocab, rows);
    for (int32_t row = 0; row < kRows; ++row) {
      const auto begin = logits.begin() + row * kVocab;
      const SampleResult alone = RunTarget(one, {begin, begin + kVocab}, row, 4);
      const SampleResult& beside = together[size_t(row)];
      EXPECT_EQ(beside.logprob, alone.logprob) << other.Describe();
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(beside.top[i].id, alone.top[i].id) << other.Describe();
        EXPECT_EQ(beside.top[i].logprob, alone.top[i].logprob) << other.Describe();
      }
    }
  };
  const auto best = MakeCpu(1);
  for (const std::string& name : InstructionSets()) {
    for (const int num_threads : {1, 2, 4}) expect_same(*best, *MakeCpu(num_threads, name));
  }
  for (const auto& backend : AllBackends()) expect_same(*backend, *backend);
}

TEST(LogprobsTest, NoneAreComputedIfNoneAreRequested) {
  const std::vector<float> logits = RandomFloats(50, 1);
  for (const auto& backend : AllBackends()) {
    const SampleResult row = RunTarget(*backend, logits, 7, -1);
    EXPECT_EQ(row.id, 7);
    EXPECT_EQ(row.logprob, 0.0f);
    EXPECT_TRUE(row.top.empty());
  }
}

}  // namespace
}  // namespace lssar
