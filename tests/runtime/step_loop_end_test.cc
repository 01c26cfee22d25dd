// How requests wait, are refused and end, step by step without the engine's thread.
#include "runtime/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/step_world.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

TEST(StepLoop, ACancelledRequestFreesItsPagesInTheNextStep) {
  World world;
  const Ticket ticket = world.Submit(Generate(Ids(50, 1), 100));
  const Ticket other = world.Submit(Generate(Ids(50, 2), 100));
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  EXPECT_EQ(world.NumFree(), 64 - 2);
  ticket.cancelled->store(true);
  EXPECT_EQ(ticket.sink->Status(), std::nullopt);
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  EXPECT_EQ(ticket.sink->Status()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(world.NumFree(), 64 - 2) << "the other one's";
  world.RunAll();
  EXPECT_EQ(other.sink->Status(), absl::OkStatus());
  EXPECT_TRUE(other.sink->At(0) == RunAlone(Generate(Ids(50, 2), 100), SmallOptions())->At(0));
  EXPECT_EQ(world.NumFree(), 64);
}

TEST(StepLoop, AQueuedRequestThatIsCancelledEndsInTheNextStep) {
  World world;
  std::vector<Ticket> running;
  for (int i = 0; i < 16; ++i) running.push_back(world.Submit(Generate(Ids(2, i), 156)));
  const Ticket waiting = world.Submit(Generate(Ids(10, 9), 10));
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  EXPECT_FALSE(waiting.sink->IsAdmitted());
  waiting.cancelled->store(true);
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  EXPECT_EQ(waiting.sink->Status()->code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(waiting.sink->IsAdmitted());
  EXPECT_EQ(world.queue.NumQueued(), 0);
}

TEST(StepLoop, DeadlinesEndRunningAndQueuedRequests) {
  World world;
  Request request = Generate(Ids(10, 1), 200);
  request.deadline = Clock::now() + std::chrono::milliseconds(300);
  const Ticket running = world.Submit(request);
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  EXPECT_TRUE(running.sink->IsAdmitted());
  std::this_thread::sleep_until(*request.deadline);
  const Ticket late = world.Submit(request);
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  for (const Ticket& ticket : {running, late}) {
    EXPECT_EQ(ticket.sink->Status()->code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_FALSE(late.sink->IsAdmitted());
  EXPECT_EQ(world.NumFree(), 64);
}

TEST(StepLoop, WhatWaitsForPagesIsNotPassed) {
  World world;  // 64 pages
  std::vector<Ticket> running;
  for (int i = 0; i < 3; ++i) running.push_back(world.Submit(Generate(Ids(239, i), 16)));
  const Ticket large = world.Submit(Generate(Ids(241, 7), 10));
  const Ticket small = world.Submit(Generate(Ids(5, 8), 5));
  for (int i = 0; i < 20; ++i) ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  for (const Ticket& ticket : running) EXPECT_TRUE(ticket.sink->IsAdmitted());
  EXPECT_FALSE(large.sink->IsAdmitted()) << "3 x (15 + 1) + 16 + 1 pages";
  EXPECT_FALSE(small.sink->IsAdmitted()) << "it would fit, but it came later";
  world.RunAll();
  EXPECT_EQ(large.sink->Status(), absl::OkStatus());
  EXPECT_EQ(small.sink->Status(), absl::OkStatus());
  EXPECT_EQ(world.loop.Stats().num_preemptions, 0);
}

TEST(StepLoop, NoMoreSequencesRunThanAStepHasRows) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 3;
  World world(options);
  size_t most = 0;
  world.fake.model->on_forward = [&](const ForwardBatch& batch) {
    most = std::max(most, batch.sequences.size());
    return absl::OkStatus();
  };
  for (int i = 0; i < 10; ++i) world.Submit(Generate(Ids(8, i), 8));
  world.RunAll();
  EXPECT_EQ(most, 3u);
}

TEST(StepLoop, WhatCanNeverFitIsRefusedWithTheArithmetic) {
  const World world;
  const auto message = [&](const Request& request) {
    const absl::Status status = CheckFits(request, world.options, world.loop.Layout());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Generate(Ids(200, 1), 57)),
              HasSubstr("prompt 200 + max_tokens 57 = 257 tokens, over max_model_len = 256"));
  EXPECT_THAT(message(Score(Ids(200, 1), {Ids(3, 1), Ids(57, 2)})),
              HasSubstr("context 200 + longest continuation 57 = 257 tokens"));
  Request wide = Generate(Ids(200, 1), 50);
  wide.generate->num_choices = 15;
  EXPECT_THAT(message(wide), HasSubstr("need 16 pages of 16 tokens, of which choices share 12; 12 "
                                       "+ 15 x 4 = 72 pages, and the pool has 64"));
  wide.generate->num_choices = 17;
  EXPECT_THAT(message(wide), HasSubstr("at most 16 sequences"));
  EXPECT_EQ(CheckFits(Generate(Ids(200, 1), 56), world.options, world.loop.Layout()),
            absl::OkStatus());
}

TEST(StepLoop, LogitsThatAreNotFiniteEndTheirRequestAlone) {
  World world;
  world.fake.model->poison_id = 63;
  std::vector<int32_t> bad_prompt = Ids(30, 1);
  bad_prompt.back() = 63;
  const Ticket good = world.Submit(Generate(Ids(30, 2), 20, 5));
  const Ticket bad = world.Submit(Generate(bad_prompt, 20));
  bad_prompt[12] = 63;
  Request with_prompt_logprobs = Generate(bad_prompt, 20);
  with_prompt_logprobs.generate->num_prompt_logprobs = 0;
  const Ticket bad_inside = world.Submit(with_prompt_logprobs);
  const Ticket bad_score = world.Submit(Score(Ids(30, 3), {{5}, {6, 63, 7, 63, 8}, {8}}));
  world.RunAll();
  for (const Ticket& ticket : {bad, bad_inside, bad_score}) {
    EXPECT_EQ(ticket.sink->Status()->code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(ticket.sink->Status()->message()), HasSubstr("position"));
  }
  EXPECT_EQ(bad_score.sink->Scores().size(), 1u);
  EXPECT_THAT(std::string(bad_score.sink->Status()->message()), HasSubstr("position 31"));
  EXPECT_EQ(good.sink->Status(), absl::OkStatus());
  EXPECT_TRUE(good.sink->At(0) == RunAlone(Generate(Ids(30, 2), 20, 5), SmallOptions(), 63)->At(0));
  EXPECT_EQ(world.NumFree(), 64);
}

TEST(StepLoop, AFailedStepEndsItsSequencesAndTheLoopGoesOn) {
  World world;
  int num_steps = 0;
  world.fake.model->on_forward = [&](const ForwardBatch&) {
    return ++num_steps == 3 ? absl::InternalError("the device is on fire") : absl::OkStatus();
  };
  const Ticket first = world.Submit(Generate(Ids(10, 1), 20));
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  EXPECT_EQ(world.loop.Step().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(first.sink->Status()->code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(first.sink->Status()->message()), HasSubstr("on fire"));
  EXPECT_EQ(world.NumFree(), 64);
  const Ticket second = world.Submit(Generate(Ids(10, 2), 20));
  world.RunAll();
  EXPECT_EQ(second.sink->Status(), absl::OkStatus());
}

TEST(StepLoop, EndAllEndsEveryOpenRequestOnce) {
  World world;
  std::vector<Ticket> tickets;
  for (int i = 0; i < 20; ++i) tickets.push_back(world.Submit(Generate(Ids(100, i), 100)));
  ASSERT_EQ(world.loop.Step(), absl::OkStatus());
  EXPECT_EQ(world.loop.EndAll(absl::UnavailableError("stop")), 20);
  for (const Ticket& ticket : tickets) {
    EXPECT_EQ(ticket.sink->Status()->code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(world.NumFree(), 64);
  EXPECT_TRUE(world.queue.WaitUntilNoneOpen(absl::ZeroDuration()));
}

}  // namespace
}  // namespace lssar
