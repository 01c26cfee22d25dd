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
std::vector<float> Oracle(const std::vector<int32_t>& prompt, int position,
                          int32_t layer = kFinalNorm) {
  const FakeCheckpoint fake;
  auto hash = std::bit_cast<uint64_t>(RopeBase(fake.checkpoint.config, int(prompt.size())));
  for (int i = 0; i <= position; ++i) hash = FakeHash(hash, uint64_t(prompt[size_t(i)]));
  if (layer != kFinalNorm) hash = FakeModel::LayerHash(hash, layer);
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

TEST(EmbedTest, LayersComeInTheOrderOfTheRequest) {
  const std::vector<int32_t> prompt = Ids(70, 12);
  const std::vector<int32_t> layers = {1, kFinalNorm, 0};
  const auto oracle = [&](int position) {
    std::vector<float> all;
    for (const int32_t layer : layers) {
      for (const float value : Oracle(prompt, position, layer)) all.push_back(value);
    }
    return all;
  };
  const auto last =
      RunAlone(Embed(prompt, {.pooling = Pooling::kLast, .layers = layers}), SmallOptions());
  EXPECT_EQ(last->Embeddings(), oracle(69));
  const auto token =
      RunAlone(Embed(prompt, {.pooling = Pooling::kToken, .layers = layers}), SmallOptions());
  std::vector<float> expected;
  for (int position = 0; position < 70; ++position) {
    for (const float value : oracle(position)) expected.push_back(value);
  }
  EXPECT_EQ(token->Embeddings(), expected);
}

TEST(EmbedTest, PositionsChooseTheTokens) {
  const std::vector<int32_t> prompt = Ids(70, 13);
  const std::vector<int32_t> layers = {0, 1};
  const std::vector<int32_t> positions = {3, 4, 30, 50};
  std::vector<float> expected;
  std::vector<double> sums(2 * Oracle(prompt, 0).size());
  for (const int32_t position : positions) {
    size_t i = 0;
    for (const int32_t layer : layers) {
      for (const float value : Oracle(prompt, position, layer)) {
        expected.push_back(value);
        sums[i++] += double{value};
      }
    }
  }
  SteppedEngine engine;
  const Submitted token = engine.Submit(
      Embed(prompt, {.pooling = Pooling::kToken, .layers = layers, .positions = positions}));
  engine.RunAll();
  EXPECT_EQ(token.sink->Embeddings(), expected);
  const Submitted mean = engine.Submit(
      Embed(prompt, {.pooling = Pooling::kMean, .layers = layers, .positions = positions}));
  engine.RunAll();
  ASSERT_EQ(mean.sink->Embeddings().size(), sums.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(mean.sink->Embeddings()[i], float(sums[i] / 4));
  }
  // The tokens before the first position come from the prefix cache.
  const Submitted late = engine.Submit(
      Embed(prompt, {.pooling = Pooling::kToken, .layers = layers, .positions = {50}}));
  engine.RunAll();
  EXPECT_EQ(late.sink->Stats().num_cached_tokens, 50);
  EXPECT_EQ(late.sink->Embeddings(),
            std::vector<float>(expected.end() - std::ptrdiff_t(sums.size()), expected.end()));
}

// A step computes no more than limits allow, however many sequences ask for large results.
TEST(EmbedTest, AStepIsBoundedByTheNumbersOfItsResults) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 240;
  SteppedEngine engine(options);
  engine.fake.model->SetHiddenSize(1 << 16);
  int largest = 0;
  size_t largest_floats = 0;
  engine.fake.model->on_forward = [&](const ForwardBatch& batch) {
    largest = std::max(largest, int(batch.token_ids.size()));
    size_t num_floats = 0;
    for (const HiddenCapture& capture : batch.hidden_captures) {
      num_floats += capture.layers.size() * size_t(capture.num_rows) << 16;
    }
    largest_floats = std::max(largest_floats, num_floats);
    return absl::OkStatus();
  };
  std::vector<Submitted> submitted;
  for (int32_t i = 0; i < 6; ++i) {
    submitted.push_back(engine.Submit(
        Embed(Ids(20, 30 + i), {.pooling = Pooling::kToken, .layers = {0, kFinalNorm}})));
  }
  engine.RunAll();
  for (const Submitted& each : submitted) {
    EXPECT_EQ(each.sink->Status(), absl::OkStatus());
    EXPECT_EQ(each.sink->Embeddings().size(), size_t{20} * 2 << 16);
  }
  EXPECT_GT(largest, 16) << "of one sequence";
  EXPECT_LE(int64_t(largest_floats), limits::kMaxStepFloats);
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
    const std::vector<int32_t> layers =
        i % 4 == 0 ? std::vector<int32_t>{kFinalNorm} : std::vector<int32_t>{1, kFinalNorm, 0};
    requests.push_back(i % 2 == 1
                           ? Generate(Ids(10, 20 + i), 150)
                           : Embed(Ids(90 + i, 20 + i), {.pooling = pooling, .layers = layers}));
    submitted.push_back(engine.Submit(requests.back()));
  }
  engine.RunAll();
  EXPECT_GT(engine.Stats().num_preemptions, 0);
  ExpectBitsOfEachAlone(submitted, requests);
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
