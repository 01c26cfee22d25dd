// How requests wait, are refused, are aborted and fail, step by step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

TEST(RequestLifecycle, ACancelledRequestFreesItsPagesInTheNextStep) {
  SteppedEngine engine;
  const Submitted submitted = engine.Submit(Generate(Ids(50, 1), 100));
  const Submitted other = engine.Submit(Generate(Ids(50, 2), 100));
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_EQ(engine.NumAvailable(), 64 - 2);
  submitted.handle.Cancel();
  EXPECT_EQ(submitted.sink->Status(), std::nullopt);
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_EQ(submitted.sink->Status()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine.NumAvailable(), 64 - 2) << "those of the other request";
  engine.RunAll();
  EXPECT_EQ(other.sink->Status(), absl::OkStatus());
  EXPECT_TRUE(other.sink->At(0) == RunAlone(Generate(Ids(50, 2), 100), SmallOptions())->At(0));
  EXPECT_EQ(engine.NumAvailable(), 64);
}

TEST(RequestLifecycle, ACancelledWaitingRequestEndsInTheNextStep) {
  SteppedEngine engine;
  std::vector<Submitted> running;
  for (int i = 0; i < 16; ++i) running.push_back(engine.Submit(Generate(Ids(2, i), 156)));
  const Submitted waiting = engine.Submit(Generate(Ids(10, 9), 10));
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_FALSE(waiting.sink->IsAdmitted());
  waiting.handle.Cancel();
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_EQ(waiting.sink->Status()->code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(waiting.sink->IsAdmitted());
  EXPECT_EQ(engine.Stats().num_waiting, 0);
}

TEST(RequestLifecycle, DeadlinesEndRunningAndWaitingRequests) {
  Clock::time_point now{std::chrono::hours(1)};
  SteppedEngine engine(SmallOptions(), [&now] { return now; });
  Request request = Generate(Ids(10, 1), 200);
  request.deadline = now + std::chrono::milliseconds(300);
  const Submitted running = engine.Submit(request);
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_TRUE(running.sink->IsAdmitted());
  EXPECT_FALSE(running.sink->At(0).tokens.empty());
  now = *request.deadline;
  const Submitted late = engine.Submit(request);
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  for (const Submitted& submitted : {running, late}) {
    EXPECT_EQ(submitted.sink->Status()->code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_FALSE(late.sink->IsAdmitted());
  EXPECT_EQ(engine.NumAvailable(), 64);
}

TEST(RequestLifecycle, ARequestThatWaitsForPagesIsNotOvertaken) {
  SteppedEngine engine;  // 64 pages
  std::vector<Submitted> running;
  for (int i = 0; i < 3; ++i) running.push_back(engine.Submit(Generate(Ids(239, i), 16)));
  const Submitted large = engine.Submit(Generate(Ids(241, 7), 10));
  const Submitted small = engine.Submit(Generate(Ids(5, 8), 5));
  engine.RunSteps(20);
  for (const Submitted& submitted : running) EXPECT_TRUE(submitted.sink->IsAdmitted());
  EXPECT_FALSE(large.sink->IsAdmitted()) << "3 x (15 + 1) + 16 + 1 pages";
  EXPECT_FALSE(small.sink->IsAdmitted()) << "it would fit, but it arrived later";
  engine.RunAll();
  EXPECT_EQ(large.sink->Status(), absl::OkStatus());
  EXPECT_EQ(small.sink->Status(), absl::OkStatus());
  EXPECT_EQ(engine.Stats().num_preemptions, 0);
}

// Keeps in `most` how many sequences a step computes at most.
void WatchSequences(SteppedEngine& engine, size_t* most) {
  engine.fake.model->on_forward = [most](const ForwardBatch& batch) {
    *most = std::max(*most, batch.sequences.size());
    return absl::OkStatus();
  };
}

TEST(RequestLifecycle, PausedRequestsGiveTheirPlacesAndGetThemBack) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 4;
  SteppedEngine engine(options);
  size_t most = 0;
  WatchSequences(engine, &most);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(Generate(Ids(20, i), 40, uint64_t(i)));
  std::vector<Submitted> streams;
  for (const Request& request : requests) streams.push_back(engine.Submit(request));
  engine.RunSteps(10);
  for (const Submitted& stream : streams) stream.sink->is_writable = false;
  Request wide = Generate(Ids(10, 8), 5);
  wide.Generate()->num_choices = 3;
  requests.push_back(wide);
  streams.push_back(engine.Submit(wide));
  engine.RunSteps(10);
  EXPECT_EQ(streams.back().sink->Status(), absl::OkStatus()) << "no other request runs";
  EXPECT_EQ(engine.Stats().num_preemptions, 3) << "no more than it needs";
  for (const Submitted& stream : streams) stream.sink->is_writable = true;
  engine.RunAll();
  EXPECT_EQ(most, 4u);
  ExpectBitsOfEachAlone(streams, requests);
}

TEST(RequestLifecycle, NoMoreSequencesRunThanAStepHasTokens) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 3;
  SteppedEngine engine(options);
  size_t most = 0;
  WatchSequences(engine, &most);
  for (int i = 0; i < 10; ++i) engine.Submit(Generate(Ids(8, i), 8));
  engine.RunAll();
  EXPECT_EQ(most, 3u);
}

TEST(RequestLifecycle, ARequestThatCanNeverFitIsRefused) {
  const SteppedEngine engine;
  const auto message = [&](const Request& request) {
    const absl::Status status = engine.Check(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Generate(Ids(200, 1), 57)),
              HasSubstr("prompt 200 + max_tokens 57 = 257 tokens, over max_model_len = 256"));
  EXPECT_THAT(message(Score(Ids(200, 1), {Ids(3, 1), Ids(57, 2)})),
              HasSubstr("context 200 + longest continuation 57 = 257 tokens"));
  Request wide = Generate(Ids(200, 1), 50);
  wide.Generate()->num_choices = 15;
  EXPECT_THAT(message(wide), HasSubstr("need 16 pages of 16 tokens, of which choices share 12; 12 "
                                       "+ 15 x 4 = 72 pages, and the pool has 64"));
  wide.Generate()->num_choices = 17;
  EXPECT_THAT(message(wide), HasSubstr("n is 17; it must be at most 16: "));
  EXPECT_EQ(engine.Check(Generate(Ids(200, 1), 56)), absl::OkStatus());
}

TEST(RequestLifecycle, NonFiniteLogitsEndOnlyTheirRequest) {
  SteppedEngine engine;
  engine.fake.model->poison_id = 63;
  std::vector<int32_t> bad_prompt = Ids(30, 1);
  bad_prompt.back() = 63;
  const Submitted good = engine.Submit(Generate(Ids(30, 2), 20, 5));
  const Submitted bad = engine.Submit(Generate(bad_prompt, 20));
  bad_prompt[12] = 63;
  Request with_prompt_logprobs = Generate(bad_prompt, 20);
  with_prompt_logprobs.Generate()->num_prompt_logprobs = 0;
  const Submitted bad_inside = engine.Submit(with_prompt_logprobs);
  const Submitted bad_score = engine.Submit(Score(Ids(30, 3), {{5}, {6, 63, 7, 63, 8}, {8}}));
  engine.RunAll();
  for (const Submitted& submitted : {bad, bad_inside, bad_score}) {
    EXPECT_EQ(submitted.sink->Status()->code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(submitted.sink->Status()->message()), HasSubstr("position"));
  }
  EXPECT_EQ(bad_score.sink->Scores().size(), 1u);
  EXPECT_THAT(std::string(bad_score.sink->Status()->message()), HasSubstr("position 31"));
  EXPECT_EQ(good.sink->Status(), absl::OkStatus());
  EXPECT_TRUE(good.sink->At(0) == RunAlone(Generate(Ids(30, 2), 20, 5), SmallOptions(), 63)->At(0));
  EXPECT_EQ(engine.NumAvailable(), 64);
}

TEST(RequestLifecycle, AFailedStepEndsItsRequestsAndTheEngineGoesOn) {
  SteppedEngine engine;
  int num_steps = 0;
  engine.fake.model->on_forward = [&](const ForwardBatch&) {
    return ++num_steps == 3 ? absl::InternalError("the device is on fire") : absl::OkStatus();
  };
  const Submitted first = engine.Submit(Generate(Ids(10, 1), 20));
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_EQ(engine.Step().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(first.sink->Status()->code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(first.sink->Status()->message()), HasSubstr("on fire"));
  EXPECT_EQ(engine.NumAvailable(), 64);
  const Submitted second = engine.Submit(Generate(Ids(10, 2), 20));
  engine.RunAll();
  EXPECT_EQ(second.sink->Status(), absl::OkStatus());
}

TEST(RequestLifecycle, AbortAllEndsEveryOpenRequestOnce) {
  SteppedEngine engine;
  std::vector<Submitted> submitted;
  for (int i = 0; i < 20; ++i) submitted.push_back(engine.Submit(Generate(Ids(100, i), 100)));
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  EXPECT_EQ(engine.Get().AbortAll(absl::UnavailableError("stop")), 20);
  for (const Submitted& each : submitted) {
    EXPECT_EQ(each.sink->Status()->code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(engine.NumAvailable(), 64);
  EXPECT_TRUE(engine.Get().GetRequestQueue().WaitUntilNoneOpen(absl::ZeroDuration()));
}

}  // namespace
}  // namespace lssar
