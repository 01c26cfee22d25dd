// Attention capture: which tokens are computed for it, and that its bits do not depend on the
// batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> UpTo(int32_t count) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Request Capture(std::vector<int32_t> prompt, std::vector<int32_t> rows, int top_k = 0) {
  Request request{.prompt = std::move(prompt)};
  request.params =
      CaptureParams{.layers = {0}, .heads = {0, 3}, .rows = std::move(rows), .top_k = top_k};
  return request;
}

// The fake model's weights of one row, without pages or an engine.
AttentionRow Oracle(const Request& request, int head, int row) {
  auto hash = std::bit_cast<uint64_t>(
      RopeBase(FakeCheckpoint().checkpoint.config, int(request.prompt.size())));
  for (int i = 0; i <= row; ++i) hash = FakeHash(hash, uint64_t(request.prompt[size_t(i)]));
  struct Sink : WeightsSink {
    void OnWeights(int, int, int, const AttentionRow& given) override { row = given; }
    AttentionRow row;
  } sink;
  const std::vector<int32_t> layers = {0}, heads = {head};
  FakeModel::GiveWeights({.layers = layers, .heads = heads, .sink = &sink}, hash, row);
  return sink.row;
}

// Counts the tokens that the model computes and the sequences that capture in one step.
struct Watch {
  explicit Watch(SteppedEngine& engine) {
    engine.fake.model->on_forward = [this](const ForwardBatch& batch) {
      num_tokens += int(batch.token_ids.size());
      std::set<int> sequences;
      for (const RowCapture& capture : batch.captures) sequences.insert(capture.sequence_idx);
      most_at_once = std::max(most_at_once, sequences.size());
      return absl::OkStatus();
    };
  }
  int num_tokens = 0;
  size_t most_at_once = 0;  // sequences that captured in one step
};

TEST(CaptureTest, GivesEveryNonZeroWeight) {
  SteppedEngine engine;
  const Watch watch(engine);
  const Request request = Capture(Ids(100, 1), {0, 17, 59});
  const Submitted submitted = engine.Submit(request);
  engine.RunAll();
  ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
  EXPECT_EQ(watch.num_tokens, 60) << "nothing after the last row is computed";
  const auto captured = submitted.sink->Weights();
  ASSERT_EQ(captured.size(), 6u);
  for (const auto& [at, row] : captured) {
    const AttentionRow oracle = Oracle(request, row.head, row.row);
    const std::vector<double>& want = oracle.weights;
    std::vector<float> got(want.size());
    for (const auto& [key, weight] : row.keys) got.at(size_t(key)) = weight;
    double entropy = 0;
    for (size_t key = 0; key < want.size(); ++key) {
      EXPECT_EQ(got[key], float(want[key]));
      if (want[key] > 0) entropy -= want[key] * std::log(want[key]);
    }
    EXPECT_EQ(row.num_nonzero, std::ssize(want) - std::ranges::count(want, 0.0));
    EXPECT_EQ(row.num_zero, oracle.num_zero);
    EXPECT_EQ(std::ssize(row.keys), row.num_nonzero);
    EXPECT_TRUE(std::ranges::is_sorted(row.keys, {}, &KeyWeight::key));
    EXPECT_NEAR(row.entropy, entropy, 1e-12);
    EXPECT_EQ(row.dropped, 0);
  }
  EXPECT_EQ(engine.NumAvailable(), 64);
  EXPECT_EQ(submitted.sink->Stats().num_prompt_tokens, 100);
  EXPECT_EQ(submitted.sink->Stats().num_generated_tokens, 0);
}

TEST(CaptureTest, TopKKeepsTheLargestAndSumsTheRest) {
  const auto all = RunAlone(Capture(Ids(100, 2), {80}), SmallOptions())->Weights();
  const auto few = RunAlone(Capture(Ids(100, 2), {80}, 5), SmallOptions())->Weights();
  for (const auto& [at, row] : few) {
    const RowWeights& whole = all.at(at);
    ASSERT_EQ(row.keys.size(), 5u);
    EXPECT_EQ(row.num_nonzero, whole.num_nonzero);
    EXPECT_EQ(row.entropy, whole.entropy);
    EXPECT_TRUE(std::ranges::is_sorted(row.keys, {}, &KeyWeight::key));
    std::vector<float> largest, given;
    double dropped = 0;
    for (const auto& [key, weight] : whole.keys) largest.push_back(weight);
    std::ranges::sort(largest, std::greater());
    for (size_t i = 5; i < largest.size(); ++i) dropped += double{largest[i]};
    largest.resize(5);
    for (const auto& [key, weight] : row.keys) given.push_back(weight);
    std::ranges::sort(given, std::greater());
    EXPECT_EQ(given, largest);
    EXPECT_NEAR(row.dropped, dropped, 1e-6);
  }
  const auto more = RunAlone(Capture(Ids(100, 2), {80}, 1000), SmallOptions())->Weights();
  EXPECT_TRUE(more == all) << "there are fewer weights than top_k";
}

TEST(CaptureTest, StatisticsAreThoseOfAllWeights) {
  const Request all = Capture(Ids(100, 2), UpTo(100));
  Request request = all;
  request.Capture()->statistics = true;
  for (const int num_tokens : {1, 24, 200}) {  // of a step
    EngineOptions options = SmallOptions();
    options.max_num_batched_tokens = num_tokens;
    const auto statistics = RunAlone(request, options)->Statistics();
    ASSERT_EQ(statistics.size(), 2u);
    for (const HeadStatistics& head : statistics) {
      EXPECT_EQ(head.head, &head == &statistics[0] ? 0 : 3);
      EXPECT_EQ(head.num_rows, 100);
      EXPECT_EQ(head.num_keys, 100 * 101 / 2);
      HeadStatistics expected{.layer = 0, .head = head.head};
      for (const int row : all.Capture()->rows) {
        const AttentionRow oracle = Oracle(all, head.head, row);
        EXPECT_TRUE(expected.Add(oracle.weights, oracle.num_zero));
      }
      EXPECT_EQ(head.num_zero, expected.num_zero);
      EXPECT_LT(head.num_zero, head.num_keys - head.num_nonzero);  // some are negligible
      EXPECT_EQ(head.num_nonzero, expected.num_nonzero);
      EXPECT_EQ(head.effective_keys, expected.effective_keys);
      EXPECT_EQ(head.first_token_mass, expected.first_token_mass);
      EXPECT_EQ(head.distance_mass, expected.distance_mass);
    }
  }
}

TEST(HeadStatisticsTest, KnownRows) {
  HeadStatistics head;
  EXPECT_TRUE(head.Add(std::vector<double>{1}, 0));
  EXPECT_EQ(head.NumDistances(), 1u);
  // Uniform over 8 keys; not normalized, and half of the weights are negative.
  EXPECT_TRUE(head.Add(std::vector<double>{2, -2, 2, -2, 2, -2, 2, -2}, 0));
  EXPECT_TRUE(head.Add(std::vector<double>{0, 0, 0}, 3));  // no mass at all
  EXPECT_TRUE(head.Add(std::vector<double>{0.75, 0, 0, 0, 0.25}, 2));
  EXPECT_EQ(head.num_rows, 4);
  EXPECT_EQ(head.num_keys, 1 + 8 + 3 + 5);
  EXPECT_EQ(head.num_nonzero, 1 + 8 + 0 + 2);
  EXPECT_EQ(head.num_zero, 3 + 2);
  const double two_keys = std::exp(-0.75 * std::log(0.75) - 0.25 * std::log(0.25));
  EXPECT_NEAR(head.effective_keys, 1 + 8 + two_keys, 1e-12);
  EXPECT_NEAR(head.first_token_mass, 1 + 0.125 + 0.75, 1e-12);
  ASSERT_EQ(head.NumDistances(), 4u);  // 0; 1; 2 and 3; 4 to 7
  EXPECT_NEAR(head.distance_mass[0], 1 + 0.125 + 0.25, 1e-12);
  EXPECT_NEAR(head.distance_mass[1], 0.125, 1e-12);
  EXPECT_NEAR(head.distance_mass[2], 0.25, 1e-12);
  EXPECT_NEAR(head.distance_mass[3], 0.5 + 0.75, 1e-12);
  const HeadStatistics before = head;
  EXPECT_FALSE(head.Add(std::vector<double>{0.5, NAN}, 0));
  EXPECT_FALSE(head.Add(std::vector<double>{INFINITY, 0.5}, 0));
  EXPECT_EQ(head.num_rows, before.num_rows);
  EXPECT_EQ(head.distance_mass, before.distance_mass);
  EXPECT_EQ(HeadStatistics::DistanceBucket((1 << 20) - 1), 20u);
}

// Samples do not change results; heads take turns.
TEST(AttentionSamplerTest, SamplesRowsOfServedRequests) {
  EngineOptions options = SmallOptions();
  EXPECT_TRUE(SteppedEngine(options).Get().SampledAttention().empty());
  const Request request = Generate(Ids(30, 1), 20);
  const auto unsampled = RunAlone(request, options);
  options.attention_sample_interval = 4;
  SteppedEngine engine(options);
  int num_steps = 0, num_captures = 0;
  engine.fake.model->on_forward = [&](const ForwardBatch& batch) {
    EXPECT_EQ(batch.captures.size(), num_steps++ % 4 == 0 ? 1u : 0u);
    num_captures += int(batch.captures.size());
    return absl::OkStatus();
  };
  const Submitted submitted = engine.Submit(request);
  engine.RunAll();
  ExpectEqualBits(*submitted.sink, *unsampled, request);
  const std::vector<HeadStatistics> sampled = engine.Get().SampledAttention();
  ASSERT_EQ(sampled.size(), 1u);  // the fake model has one head
  EXPECT_GT(num_captures, 4);
  EXPECT_EQ(sampled[0].num_rows, num_captures);
  EXPECT_GT(sampled[0].num_keys, num_captures * 20);
}

// Tokens before and between the captured rows may come from the cache; captured rows never do.
TEST(CaptureTest, CachedPagesChangeNothing) {
  SteppedEngine engine;
  Watch watch(engine);
  for (const std::vector<int32_t>& rows :
       {std::vector<int32_t>{99}, {50, 70}, {48}, {47}, {0, 90}}) {
    const Request request = Capture(Ids(100, 3), rows);
    engine.Submit(Generate(Ids(100, 3), 5));
    engine.RunAll();
    watch.num_tokens = 0;
    const Submitted submitted = engine.Submit(request);
    engine.RunAll();
    ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
    EXPECT_EQ(watch.num_tokens, rows.back() + 1 - submitted.sink->Stats().num_cached_tokens);
    EXPECT_LE(submitted.sink->Stats().num_cached_tokens, rows.back() + 1 - std::ssize(rows));
    EXPECT_GE(submitted.sink->Stats().num_cached_tokens, rows.front() / 16 * 16);
    EXPECT_TRUE(submitted.sink->Weights() == RunAlone(request, SmallOptions())->Weights());
  }
}

// 64 heads of 200 rows are 1.3 million keys: no step reads all of them, and no step captures for
// two requests.
TEST(CaptureTest, AStepIsBoundedAndCapturesForOneRequest) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 256;
  SteppedEngine engine(options);
  const Watch watch(engine);
  std::vector<Submitted> submitted;
  std::vector<Request> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(Capture(Ids(200, 4 + i), UpTo(200), 3));
    requests.back().Capture()->heads = UpTo(64);
    submitted.push_back(engine.Submit(requests.back()));
  }
  const Submitted reader = engine.Submit(Generate(Ids(20, 9), 40));
  engine.RunAll();
  for (size_t i = 0; i < submitted.size(); ++i) {
    ASSERT_EQ(submitted[i].sink->Status(), absl::OkStatus());
    EXPECT_TRUE(submitted[i].sink->Weights() == RunAlone(requests[i], options)->Weights());
    EXPECT_LE(submitted[i].sink->LargestStep(), 64u * 64u);
  }
  EXPECT_EQ(reader.sink->Status(), absl::OkStatus());
  EXPECT_EQ(watch.most_at_once, 1u);
}

TEST(CaptureTest, APreemptedRequestSendsNothingTwice) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 17 * kPageBytes;
  SteppedEngine engine(options);
  engine.Submit(Generate(Ids(30, 10), 200));
  Request request = Capture(Ids(200, 11), UpTo(200));
  request.Capture()->heads = UpTo(256);  // many steps
  const Submitted submitted = engine.Submit(request);
  engine.RunAll();
  ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
  EXPECT_GT(submitted.sink->Stats().num_preemptions, 0);
  EXPECT_TRUE(submitted.sink->Weights() == RunAlone(request, options)->Weights());
  EXPECT_EQ(engine.NumAvailable(), 17);
}

TEST(CaptureTest, EndsByCancelDeadlineAndNan) {
  SteppedEngine engine;
  engine.fake.model->poison_id = 63;
  Request request = Capture(Ids(200, 12), UpTo(200));
  request.Capture()->heads = UpTo(64);
  const Submitted cancelled = engine.Submit(request);
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_FALSE(cancelled.sink->Weights().empty());
  cancelled.handle.Cancel();
  engine.RunAll();
  EXPECT_EQ(cancelled.sink->Status()->code(), absl::StatusCode::kCancelled);
  request.deadline = Noon();
  const Submitted late = engine.Submit(request);
  engine.RunAll();
  EXPECT_EQ(late.sink->Status()->code(), absl::StatusCode::kDeadlineExceeded);
  request.deadline.reset();
  request.prompt[70] = 63;
  const Submitted poisoned = engine.Submit(request);
  engine.RunAll();
  EXPECT_EQ(poisoned.sink->Status()->code(), absl::StatusCode::kDataLoss);
  for (const auto& [at, row] : poisoned.sink->Weights()) EXPECT_LT(row.row, 70);
  EXPECT_EQ(engine.NumAvailable(), 64);
}

TEST(CaptureTest, APromptThatNeverFitsIsRefused) {
  const SteppedEngine engine;
  const absl::Status status = engine.Check(Capture(Ids(257, 1), {0}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("prompt of 257 tokens, over max_model_len = 256"));
  EXPECT_EQ(engine.Check(Capture(Ids(256, 1), {255})), absl::OkStatus());
}

}  // namespace
}  // namespace lssar
