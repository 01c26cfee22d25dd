// Attention as the engine shows it: which rows are run for it, and that nothing changes it.
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
  request.capture =
      CaptureParams{.layers = {0}, .heads = {0, 3}, .rows = std::move(rows), .top_k = top_k};
  return request;
}

// The fake model's own weights of one row, without pages or an engine.
std::vector<double> Oracle(const Request& request, int head, int row) {
  auto hash = std::bit_cast<uint64_t>(
      RopeBase(FakeCheckpoint().checkpoint.config, int(request.prompt.size())));
  for (int i = 0; i <= row; ++i) hash = FakeHash(hash, uint64_t(request.prompt[size_t(i)]));
  struct Sink : WeightsSink {
    void OnWeights(int, int, int, std::span<const double> given) override {
      weights.assign(given.begin(), given.end());
    }
    std::vector<double> weights;
  } sink;
  const std::vector<int32_t> layers = {0}, heads = {head};
  FakeModel::GiveWeights({.layers = layers, .heads = heads, .sink = &sink}, hash, row);
  return sink.weights;
}

// Counts the rows and the positions that the model is asked for.
struct Watch {
  explicit Watch(SteppedEngine& engine) {
    engine.fake.model->on_forward = [this](const ForwardBatch& batch) {
      num_rows += int(batch.token_ids.size());
      std::set<int> sequences;
      for (const RowCapture& capture : batch.captures) sequences.insert(capture.sequence_idx);
      most_at_once = std::max(most_at_once, sequences.size());
      return absl::OkStatus();
    };
  }
  int num_rows = 0;
  size_t most_at_once = 0;  // sequences that captured in one step
};

TEST(CaptureTest, GivesEveryWeightThatIsNotZero) {
  SteppedEngine engine;
  const Watch watch(engine);
  const Request request = Capture(Ids(100, 1), {0, 17, 59});
  const Submitted submitted = engine.Submit(request);
  engine.RunAll();
  ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
  EXPECT_EQ(watch.num_rows, 60) << "nothing behind the last row is run";
  const auto captured = submitted.sink->Weights();
  ASSERT_EQ(captured.size(), 6u);
  for (const auto& [at, row] : captured) {
    const std::vector<double> want = Oracle(request, row.head, row.row);
    std::vector<float> got(want.size());
    for (const auto& [key, weight] : row.keys) got.at(size_t(key)) = weight;
    double entropy = 0;
    for (size_t key = 0; key < want.size(); ++key) {
      EXPECT_EQ(got[key], float(want[key]));
      if (want[key] > 0) entropy -= want[key] * std::log(want[key]);
    }
    EXPECT_EQ(row.num_nonzero, std::ssize(want) - std::ranges::count(want, 0.0));
    EXPECT_EQ(std::ssize(row.keys), row.num_nonzero);
    EXPECT_TRUE(std::ranges::is_sorted(row.keys, {}, &KeyWeight::key));
    EXPECT_NEAR(row.entropy, entropy, 1e-12);
    EXPECT_EQ(row.dropped, 0);
  }
  EXPECT_EQ(engine.NumAvailable(), 64);
  EXPECT_EQ(submitted.sink->Stats().num_prompt_tokens, 100);
  EXPECT_EQ(submitted.sink->Stats().num_generated_tokens, 0);
}

TEST(CaptureTest, TheLargestStayAndTheRestIsCounted) {
  const auto all = RunAlone(Capture(Ids(100, 2), {80}), SmallOptions())->Weights();
  const auto few = RunAlone(Capture(Ids(100, 2), {80}, 5), SmallOptions())->Weights();
  for (const auto& [at, row] : few) {
    const RowWeights& whole = all.at(at);
    ASSERT_EQ(row.keys.size(), 5u);
    EXPECT_EQ(row.num_nonzero, whole.num_nonzero);
    EXPECT_EQ(row.entropy, whole.entropy);
    EXPECT_TRUE(std::ranges::is_sorted(row.keys, {}, &KeyWeight::key));
    std::vector<float> largest, kept;
    double dropped = 0;
    for (const auto& [key, weight] : whole.keys) largest.push_back(weight);
    std::ranges::sort(largest, std::greater());
    for (size_t i = 5; i < largest.size(); ++i) dropped += double{largest[i]};
    largest.resize(5);
    for (const auto& [key, weight] : row.keys) kept.push_back(weight);
    std::ranges::sort(kept, std::greater());
    EXPECT_EQ(kept, largest);
    EXPECT_NEAR(row.dropped, dropped, 1e-6);
  }
  const auto more = RunAlone(Capture(Ids(100, 2), {80}, 1000), SmallOptions())->Weights();
  EXPECT_TRUE(more == all) << "there are not that many";
}

// What lies before a row, and between two, may come from the cache; the rows themselves never do.
TEST(CaptureTest, CachedPagesChangeNothing) {
  SteppedEngine engine;
  Watch watch(engine);
  for (const std::vector<int32_t>& rows :
       {std::vector<int32_t>{99}, {50, 70}, {48}, {47}, {0, 90}}) {
    const Request request = Capture(Ids(100, 3), rows);
    engine.Submit(Generate(Ids(100, 3), 5));
    engine.RunAll();
    watch.num_rows = 0;
    const Submitted submitted = engine.Submit(request);
    engine.RunAll();
    ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
    EXPECT_EQ(watch.num_rows, rows.back() + 1 - submitted.sink->Stats().num_cached_tokens);
    EXPECT_LE(submitted.sink->Stats().num_cached_tokens, rows.back() + 1 - std::ssize(rows));
    EXPECT_GE(submitted.sink->Stats().num_cached_tokens, rows.front() / 16 * 16);
    EXPECT_TRUE(submitted.sink->Weights() == RunAlone(request, SmallOptions())->Weights());
  }
}

// 64 heads of 200 rows are 1.3 million keys: no step takes all of them, and none takes those of two
// requests.
TEST(CaptureTest, AStepIsBoundedAndThatOfOneRequest) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 256;
  SteppedEngine engine(options);
  const Watch watch(engine);
  std::vector<Submitted> submitted;
  std::vector<Request> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(Capture(Ids(200, 4 + i), UpTo(200), 3));
    requests.back().capture->heads = UpTo(64);
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

TEST(CaptureTest, APreemptedRequestGivesNothingTwice) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 17 * kPageBytes;
  SteppedEngine engine(options);
  engine.Submit(Generate(Ids(30, 10), 200));
  Request request = Capture(Ids(200, 11), UpTo(200));
  request.capture->heads = UpTo(256);  // so that it takes many steps
  const Submitted submitted = engine.Submit(request);
  engine.RunAll();
  ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
  EXPECT_GT(submitted.sink->Stats().num_preemptions, 0);
  EXPECT_TRUE(submitted.sink->Weights() == RunAlone(request, options)->Weights());
  EXPECT_EQ(engine.NumAvailable(), 17);
}

TEST(CaptureTest, EndsByCancelByDeadlineAndByNan) {
  SteppedEngine engine;
  engine.fake.model->poison_id = 63;
  Request request = Capture(Ids(200, 12), UpTo(200));
  request.capture->heads = UpTo(64);
  const Submitted cancelled = engine.Submit(request);
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_FALSE(cancelled.sink->Weights().empty());
  cancelled.handle.Cancel();
  engine.RunAll();
  EXPECT_EQ(cancelled.sink->Status()->code(), absl::StatusCode::kCancelled);
  request.deadline = Clock::now();
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
