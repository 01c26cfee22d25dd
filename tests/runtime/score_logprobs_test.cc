// Log-probabilities of chosen ids and of the whole vocabulary at the positions of continuations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

constexpr int kVocab = 64;

Request ScoreAll(std::vector<int32_t> context, std::vector<std::vector<int32_t>> continuations) {
  Request request = Score(std::move(context), std::move(continuations));
  request.Score()->full_distribution = true;
  return request;
}

TEST(ScoreLogprobsTest, TheWholeVocabularySumsToOneAndHasTheTokensBits) {
  const std::vector<std::vector<int32_t>> continuations = {Ids(90, 2), Ids(1, 3), Ids(40, 4)};
  const Request request = ScoreAll(Ids(70, 1), continuations);
  const auto sink = RunAlone(request, SmallOptions());
  const auto logprobs = sink->Logprobs();
  const std::vector<ContinuationScore> scores = sink->Scores();
  ASSERT_EQ(scores.size(), continuations.size());
  for (size_t c = 0; c < continuations.size(); ++c) {
    const std::vector<float>& values = logprobs.at(int(c));
    ASSERT_EQ(values.size(), continuations[c].size() * kVocab);
    for (size_t i = 0; i < continuations[c].size(); ++i) {
      const auto row = values.begin() + std::ptrdiff_t(i * kVocab);
      double sum = 0;
      for (auto value = row; value != row + kVocab; ++value) sum += std::exp(double{*value});
      EXPECT_NEAR(sum, 1, 1e-6);
      // The fake model samples as the reference backend does, whose last bits are others.
      EXPECT_NEAR(row[continuations[c][i]], scores[c].tokens[i].logprob, 2e-6);
      EXPECT_NEAR(*std::max_element(row, row + kVocab), scores[c].tokens[i].top[0].logprob, 2e-6);
    }
  }
}

TEST(ScoreLogprobsTest, ChosenIdsAreAPartOfTheVocabulary) {
  Request request = ScoreAll(Ids(20, 5), {Ids(30, 6), Ids(25, 7)});
  const auto whole = RunAlone(request, SmallOptions());
  request.Score()->full_distribution = false;
  request.Score()->logprob_ids = {9, 3, 63, 3};
  const auto chosen = RunAlone(request, SmallOptions());
  for (const int c : {0, 1}) {
    const std::vector<float> all = whole->Logprobs().at(c), some = chosen->Logprobs().at(c);
    ASSERT_EQ(some.size() * kVocab, all.size() * 4);
    for (size_t i = 0; i < some.size(); ++i) {
      EXPECT_EQ(some[i], all[i / 4 * kVocab + size_t(request.Score()->logprob_ids[i % 4])]);
    }
  }
}

TEST(ScoreLogprobsTest, TheSameBitsBesideOthersThroughPreemptionAndAfterACachedScore) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 20 * kPageBytes;
  SteppedEngine engine(options);
  const Request plain = Score(Ids(60, 8), {Ids(40, 9), Ids(30, 10), Ids(35, 11)});
  engine.Submit(plain);
  engine.RunAll();
  const Request request = ScoreAll(plain.prompt, plain.Score()->continuations);
  const Submitted submitted = engine.Submit(request);
  for (int32_t i = 0; i < 6; ++i) engine.Submit(Generate(Ids(10, 20 + i), 150));
  engine.RunAll();
  EXPECT_GT(engine.Stats().num_preemptions, 0);
  ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions()), request);
}

TEST(ScoreLogprobsTest, AReaderThatDoesNotReadStopsIt) {
  SteppedEngine engine;
  const Submitted submitted = engine.Submit(ScoreAll(Ids(20, 12), {Ids(200, 13)}));
  engine.RunSteps(2);
  submitted.sink->is_writable = false;
  engine.RunSteps(20);
  EXPECT_FALSE(submitted.sink->IsDone());
  submitted.sink->is_writable = true;
  engine.RunAll();
  EXPECT_EQ(submitted.sink->Logprobs().at(0).size(), size_t{200} * kVocab);
  EXPECT_LE(submitted.sink->LargestBlock(), size_t{24} * kVocab) << "one step's tokens";
}

TEST(ScoreLogprobsTest, LogitsThatAreNotFiniteEndTheRequest) {
  SteppedEngine engine;
  engine.fake.model->poison_id = 1;
  std::vector<int32_t> ids = Ids(30, 14);
  ids[9] = 1;
  const Submitted bad = engine.Submit(ScoreAll(Ids(5, 15), {ids}));
  engine.RunAll();
  ASSERT_TRUE(bad.sink->Status().has_value());
  EXPECT_EQ(bad.sink->Status()->code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace lssar
