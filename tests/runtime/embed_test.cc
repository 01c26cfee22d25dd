// Embed requests: which tokens are computed, the pooling, and that nothing changes the bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

Request Embed(std::vector<int32_t> prompt, EmbedParams params) {
  Request request{.prompt = std::move(prompt)};
  request.params = params;
  return request;
}

// The fake model's hidden state at `position`, without pages or an engine.
std::vector<float> Oracle(const std::vector<int32_t>& prompt, int position) {
  const FakeCheckpoint fake;
  auto hash = std::bit_cast<uint64_t>(RopeBase(fake.checkpoint.config, int(prompt.size())));
  for (int i = 0; i <= position; ++i) hash = FakeHash(hash, uint64_t(prompt[size_t(i)]));
  std::vector<float> hidden;
  for (size_t i = 0; i < size_t(fake.checkpoint.config.hidden_size); ++i) {
    hidden.push_back(FakeModel::HiddenElement(hash, i));
  }
  return hidden;
}

TEST(EmbedTest, LastIsTheHiddenStateOfTheLastToken) {
  const std::vector<int32_t> prompt = Ids(70, 1);
  const auto sink = RunAlone(Embed(prompt, {.pooling = Pooling::kLast}), SmallOptions());
  EXPECT_EQ(sink->Embeddings(), Oracle(prompt, 69));
}

TEST(EmbedTest, TokenGivesEveryHiddenStateInOrderOverSeveralSteps) {
  const std::vector<int32_t> prompt = Ids(70, 2);
  const auto sink = RunAlone(Embed(prompt, {.pooling = Pooling::kToken}), SmallOptions());
  std::vector<float> expected;
  for (int position = 0; position < 70; ++position) {
    for (const float value : Oracle(prompt, position)) expected.push_back(value);
  }
  EXPECT_EQ(sink->Embeddings(), expected);
}

TEST(EmbedTest, MeanIsTheMeanInDouble) {
  const std::vector<int32_t> prompt = Ids(70, 3);
  const auto sink = RunAlone(Embed(prompt, {.pooling = Pooling::kMean}), SmallOptions());
  std::vector<double> sums(Oracle(prompt, 0).size());
  for (int position = 0; position < 70; ++position) {
    const std::vector<float> hidden = Oracle(prompt, position);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += double{hidden[i]};
  }
  ASSERT_EQ(sink->Embeddings().size(), sums.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(sink->Embeddings()[i], float(sums[i] / 70));
  }
}

TEST(EmbedTest, NormalizesAfterTheHead) {
  const std::vector<int32_t> prompt = Ids(20, 4);
  const auto unit = RunAlone(Embed(prompt, {.normalize = true}), SmallOptions());
  double squares = 0;
  for (const float value : unit->Embeddings()) squares += double{value} * double{value};
  EXPECT_NEAR(squares, 1, 1e-6);
  const auto head = RunAlone(Embed(prompt, {.apply_head = true}), SmallOptions());
  float sum = 0;
  for (const float value : Oracle(prompt, 19)) sum += value;
  EXPECT_EQ(head->Embeddings(), std::vector<float>{sum});
  const auto sign =
      RunAlone(Embed(prompt, {.apply_head = true, .normalize = true}), SmallOptions());
  EXPECT_FLOAT_EQ(sign->Embeddings()[0], sum < 0 ? -1.0f : 1.0f);
}

TEST(EmbedTest, LastUsesThePrefixCacheAndGivesTheSameBits) {
  const std::vector<int32_t> prompt = Ids(100, 5);
  SteppedEngine engine;
  const Request request = Embed(prompt, {.pooling = Pooling::kLast});
  const Submitted cold = engine.Submit(request);
  engine.RunAll();
  const Submitted warm = engine.Submit(request);
  engine.RunAll();
  EXPECT_EQ(cold.sink->Stats().num_cached_tokens, 0);
  EXPECT_EQ(warm.sink->Stats().num_cached_tokens, 96);
  ExpectEqualBits(*cold.sink, *warm.sink, request);
}

TEST(EmbedTest, TheSameBitsBesideOthersAndThroughPreemption) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 20 * kPageBytes;  // far fewer than the requests need together
  SteppedEngine engine(options);
  std::vector<Request> requests;
  std::vector<Submitted> submitted;
  for (int32_t i = 0; i < 12; ++i) {
    const Pooling pooling = i % 3 == 0   ? Pooling::kLast
                            : i % 3 == 1 ? Pooling::kMean
                                         : Pooling::kToken;
    requests.push_back(i % 2 == 1 ? Generate(Ids(10, 20 + i), 150)
                                  : Embed(Ids(90 + i, 20 + i), {.pooling = pooling}));
    submitted.push_back(engine.Submit(requests.back()));
  }
  engine.RunAll();
  EXPECT_GT(engine.Stats().num_preemptions, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto alone = RunAlone(requests[i], SmallOptions());
    ExpectEqualBits(*submitted[i].sink, *alone, requests[i]);
  }
}

TEST(EmbedTest, AHiddenStateThatIsNotFiniteEndsItsRequestAlone) {
  SteppedEngine engine;
  engine.fake.model->poison_id = 1;
  std::vector<int32_t> poisoned = Ids(30, 6);
  poisoned[20] = 1;  // Ids has none below 2
  const Submitted bad = engine.Submit(Embed(poisoned, {.pooling = Pooling::kMean}));
  const Submitted good = engine.Submit(Embed(Ids(30, 7), {.pooling = Pooling::kMean}));
  engine.RunAll();
  ASSERT_TRUE(bad.sink->Status().has_value());
  EXPECT_EQ(bad.sink->Status()->code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(bad.sink->Status()->message()), HasSubstr("position 20"));
  EXPECT_EQ(good.sink->Status(), absl::OkStatus());
}

}  // namespace
}  // namespace lssar
