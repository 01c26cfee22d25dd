// The engine with its thread: submit, cancel, drain, backpressure, failures.
#include "runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_checkpoint.h"
#include "tests/support/recording_sink.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

EngineOptions ThreadedOptions() {
  return {.max_model_len = 512,
          .max_num_seqs = 8,
          .max_queued_requests = 64,
          .max_num_batched_tokens = 32,
          .page_size = 16};
}

Request GenerateTokens(int num_prompt_tokens, int max_tokens, uint64_t seed = 1) {
  Request request;
  for (int i = 0; i < num_prompt_tokens; ++i) request.prompt.push_back(int32_t(2 + i % 60));
  request.params =
      GenerateParams{.sampling = {.seed = seed}, .max_tokens = max_tokens, .ignore_eos = true};
  return request;
}

int NumUsedPages(const Engine& engine) {
  const EngineStats stats = engine.Stats();
  return stats.num_pages - stats.num_free_pages - stats.num_cached_pages;
}

std::shared_ptr<RecordingSink> MakeSink() {
  auto sink = std::make_shared<RecordingSink>();
  sink->SetSubmitter(std::this_thread::get_id());
  return sink;
}

// Blocks the engine thread inside a forward step until it is opened.
class Gate {
 public:
  void Wait() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void WaitUntilReached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_waiting_ = 0;
  bool is_open_ = false;
};

class EngineTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> Start(const EngineOptions& options = ThreadedOptions()) {
    auto engine = Engine::Create(&fake_.checkpoint, &fake_.backend, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  FakeCheckpoint fake_;
};

TEST_F(EngineTest, TwoHundredRequestsOnAQueueOfSixtyFour) {
  Gate gate;
  fake_.model->on_forward = [&](const ForwardBatch&) {
    gate.Wait();
    return absl::OkStatus();
  };
  const auto engine = Start();
  std::vector<std::shared_ptr<RecordingSink>> accepted = {MakeSink()};
  ASSERT_TRUE(engine->Submit(GenerateTokens(20, 10), accepted[0]).ok());
  gate.WaitUntilReached();
  int num_refused = 0;
  for (int i = 1; i < 200; ++i) {
    auto sink = MakeSink();
    const auto handle = engine->Submit(GenerateTokens(20, 10, uint64_t(i)), sink);
    if (handle.ok()) {
      accepted.push_back(sink);
    } else {
      ++num_refused;
      EXPECT_EQ(handle.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(std::string(handle.status().message()), HasSubstr("max_queued_requests = 64"));
    }
  }
  EXPECT_EQ(accepted.size(), 1u + 64u);
  EXPECT_EQ(num_refused, 135);
  EXPECT_EQ(engine->Stats().num_waiting, 64);
  gate.Open();
  for (const auto& sink : accepted) {
    EXPECT_EQ(sink->Wait(), absl::OkStatus());
    EXPECT_EQ(sink->At(0).tokens.size(), 10u);
  }
  EXPECT_TRUE(engine->Drain(absl::Minutes(2)));
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(NumUsedPages(*engine), 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_generated_tokens, 10 * int64_t(accepted.size()));
}

TEST_F(EngineTest, CancelEndsARunningAndAWaitingRequest) {
  Gate gate;
  fake_.model->on_forward = [&](const ForwardBatch&) {
    gate.Wait();
    return absl::OkStatus();
  };
  EngineOptions options = ThreadedOptions();
  options.max_num_seqs = 1;
  const auto engine = Start(options);
  const auto running = MakeSink(), queued = MakeSink();
  const auto running_handle = engine->Submit(GenerateTokens(10, 400), running);
  gate.WaitUntilReached();
  const auto queued_handle = engine->Submit(GenerateTokens(10, 10), queued);
  ASSERT_TRUE(running_handle.ok() && queued_handle.ok());
  EXPECT_GT(NumUsedPages(*engine), 0);
  running_handle->Cancel();
  queued_handle->Cancel();
  EXPECT_FALSE(running->IsDone());
  gate.Open();
  EXPECT_EQ(running->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(queued->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_LE(running->At(0).tokens.size(), 1u) << "at most the token of the step in progress";
  EXPECT_EQ(NumUsedPages(*engine), 0);
  Engine::Handle().Cancel();  // no request: nothing happens
}

TEST_F(EngineTest, DeadlinePasses) {
  fake_.model->on_forward = [](const ForwardBatch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return absl::OkStatus();
  };
  const auto engine = Start();
  Request request = GenerateTokens(10, 500);
  request.deadline = Clock::now() + std::chrono::milliseconds(500);
  const auto sink = MakeSink();
  ASSERT_TRUE(engine->Submit(request, sink).ok());
  EXPECT_EQ(sink->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(Clock::now(), *request.deadline);
  EXPECT_LT(sink->At(0).tokens.size(), 100u);
}

TEST_F(EngineTest, DrainFinishesOpenRequestsAndRefusesNewOnes) {
  const auto engine = Start();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 30; ++i) {
    sinks.push_back(MakeSink());
    ASSERT_TRUE(engine->Submit(GenerateTokens(30, 50), sinks.back()).ok());
  }
  EXPECT_TRUE(engine->Stats().is_serving);
  EXPECT_TRUE(engine->Drain(absl::InfiniteDuration()));
  for (const auto& sink : sinks) EXPECT_EQ(sink->Status(), absl::OkStatus());
  const auto late = engine->Submit(GenerateTokens(30, 50), MakeSink());
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(engine->Stats().is_serving);
  EXPECT_TRUE(engine->Drain(absl::ZeroDuration())) << "again: no request is left to abort";
}

TEST_F(EngineTest, DrainAbortsOpenRequestsAtItsLimit) {
  fake_.model->on_forward = [](const ForwardBatch&) {  // they would take a minute
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return absl::OkStatus();
  };
  const auto engine = Start();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 20; ++i) {
    sinks.push_back(MakeSink());
    ASSERT_TRUE(engine->Submit(GenerateTokens(10, 500), sinks.back()).ok());
  }
  EXPECT_FALSE(engine->Drain(absl::Milliseconds(20)));
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->Status()->code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(NumUsedPages(*engine), 0);
}

TEST_F(EngineTest, DestructionEndsEveryRequestOnce) {
  fake_.model->on_forward = [](const ForwardBatch&) {  // or a request may finish first
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return absl::OkStatus();
  };
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  {
    const auto engine = Start();
    for (int i = 0; i < 40; ++i) {
      sinks.push_back(MakeSink());
      ASSERT_TRUE(engine->Submit(GenerateTokens(10, 500), sinks.back()).ok());
    }
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->Status()->code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(sink.use_count(), 1) << "the engine releases its sinks";
  }
}

TEST_F(EngineTest, SinksMayCallTheEngine) {
  const auto engine = Start();
  const auto first = MakeSink(), second = MakeSink();
  first->on_done = [&] {
    EXPECT_EQ(NumUsedPages(*engine), 0);
    EXPECT_TRUE(engine->Submit(GenerateTokens(5, 5), second).ok());
  };
  second->SetSubmitter({});  // submitted on the engine thread itself
  ASSERT_TRUE(engine->Submit(GenerateTokens(5, 5), first).ok());
  EXPECT_EQ(first->Wait(), absl::OkStatus());
  EXPECT_EQ(second->Wait(), absl::OkStatus());
}

TEST_F(EngineTest, RepeatedBackendFailuresStopTheEngine) {
  std::atomic<bool> is_broken = false;
  fake_.model->on_forward = [&](const ForwardBatch&) {
    return is_broken ? absl::InternalError("no such device") : absl::OkStatus();
  };
  const auto engine = Start();
  const auto before = MakeSink();
  ASSERT_TRUE(engine->Submit(GenerateTokens(5, 5), before).ok());
  EXPECT_EQ(before->Wait(), absl::OkStatus());
  is_broken = true;
  int num_internal = 0;
  for (int i = 0; i < 10; ++i) {
    const auto sink = MakeSink();
    const auto handle = engine->Submit(GenerateTokens(5, 5), sink);
    if (handle.ok()) {
      const auto code = sink->Wait().code();
      EXPECT_TRUE(code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnavailable);
      num_internal += code == absl::StatusCode::kInternal;
    } else {
      EXPECT_EQ(handle.status().code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(handle.status().message()), HasSubstr("no such device"));
    }
  }
  EXPECT_EQ(num_internal, 3);
  EXPECT_FALSE(engine->Stats().is_serving);
}

TEST_F(EngineTest, ALostDeviceEndsAllRequestsAtOnce) {
  fake_.backend.is_lost = true;
  fake_.model->on_forward = [](const ForwardBatch&) { return absl::InternalError("no answer"); };
  const auto engine = Start();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 10; ++i) {
    sinks.push_back(MakeSink());
    if (!engine->Submit(GenerateTokens(10, 5), sinks.back()).ok()) sinks.pop_back();
  }
  ASSERT_FALSE(sinks.empty());
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->Wait().code(), absl::StatusCode::kInternal);
    EXPECT_NE(std::string(sink->Wait().message()).find("no answer"), std::string::npos);
  }
  absl::Status refused;
  while ((refused = engine->Submit(GenerateTokens(10, 5), MakeSink()).status()).ok()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine->Stats().is_device_lost);
  EXPECT_FALSE(engine->Stats().is_serving);
  EXPECT_EQ(engine->Stats().num_steps, 1);
}

TEST_F(EngineTest, SleepsWithoutWork) {
  const auto engine = Start();
  const auto sink = MakeSink();
  ASSERT_TRUE(engine->Submit(GenerateTokens(5, 5), sink).ok());
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(double(std::clock() - before) / CLOCKS_PER_SEC, 0.05) << "CPU seconds while idle";
}

// Other requests go on, and an engine whose requests are all paused sleeps.
TEST_F(EngineTest, ASlowReaderPausesOnlyItsRequest) {
  const auto engine = Start();
  const auto slow = MakeSink(), other = MakeSink();
  slow->is_writable = false;
  const auto handle = engine->Submit(GenerateTokens(10, 100), slow);
  ASSERT_TRUE(handle.ok());
  ASSERT_TRUE(engine->Submit(GenerateTokens(10, 100), other).ok());
  EXPECT_EQ(other->Wait(), absl::OkStatus());
  EXPECT_TRUE(slow->IsAdmitted());
  EXPECT_TRUE(slow->At(0).tokens.empty());
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(double(std::clock() - before) / CLOCKS_PER_SEC, 0.05) << "CPU seconds while paused";
  slow->is_writable = true;
  handle->Resume();
  EXPECT_EQ(slow->Wait(), absl::OkStatus());
  EXPECT_EQ(slow->At(0).tokens.size(), 100u);
}

TEST_F(EngineTest, APausedRequestCanBeCancelledAndHasADeadline) {
  const auto engine = Start();
  const auto cancelled = MakeSink(), late = MakeSink();
  cancelled->is_writable = late->is_writable = false;
  const auto handle = engine->Submit(GenerateTokens(10, 100), cancelled);
  Request request = GenerateTokens(10, 100);
  request.deadline = Clock::now() + std::chrono::milliseconds(200);
  ASSERT_TRUE(handle.ok() && engine->Submit(request, late).ok());
  EXPECT_EQ(late->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(cancelled->IsDone());
  handle->Cancel();
  EXPECT_EQ(cancelled->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(NumUsedPages(*engine), 0);
}

TEST_F(EngineTest, CountsStepsTokensAndTheirTimes) {
  class Observer : public StepObserver {
   public:
    void OnResults() override { ++num_results; }
    void OnStep(int num_tokens) override {
      ++num_steps;
      total_tokens += num_tokens;
    }
    std::atomic<int64_t> num_steps = 0, total_tokens = 0, num_results = 0;
  };
  Observer observer;
  Gate gate;
  fake_.model->on_forward = [&](const ForwardBatch&) {
    gate.Wait();
    return absl::OkStatus();
  };
  EngineOptions options = ThreadedOptions();
  options.observer = &observer;
  options.enable_prefix_caching = false;
  const auto engine = Start(options);
  EXPECT_EQ(engine->Stats().step_started_at, std::nullopt);
  const Clock::time_point before = Clock::now();
  const auto sink = MakeSink(), waiting = MakeSink();
  ASSERT_TRUE(engine->Submit(GenerateTokens(20, 10), sink).ok());
  gate.WaitUntilReached();
  ASSERT_TRUE(engine->Submit(GenerateTokens(30, 1), waiting).ok());
  const EngineStats inside = engine->Stats();
  ASSERT_TRUE(inside.step_started_at.has_value());
  EXPECT_GE(*inside.step_started_at, before);
  EXPECT_LE(*inside.step_started_at, Clock::now());
  EXPECT_EQ(inside.num_waiting_tokens, 30);
  gate.Open();
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(waiting->Wait(), absl::OkStatus());
  EXPECT_TRUE(engine->Drain(absl::Minutes(2)));
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(stats.step_started_at, std::nullopt);
  EXPECT_EQ(stats.num_waiting_tokens, 0);
  EXPECT_EQ(stats.num_batched_tokens, 20 + 9 + 30) << "the last token is never computed";
  EXPECT_EQ(stats.num_steps, observer.num_steps);
  EXPECT_EQ(stats.num_layers_begun, stats.num_steps) << "the fake model has one layer";
  EXPECT_EQ(stats.num_batched_tokens, observer.total_tokens);
  // After each step, and before the model runs in the two steps that admit a request.
  EXPECT_GE(observer.num_results, stats.num_steps + 2);
  const StageTimes& stages = stats.stages;
  int64_t sum_ns = 0;
  for (const int64_t ns : {stages.admit_ns, stages.schedule_ns, stages.forward_ns, stages.sample_ns,
                           stages.output_ns, stages.idle_ns}) {
    EXPECT_GT(ns, 0);
    sum_ns += ns;
  }
  EXPECT_LE(sum_ns, std::chrono::nanoseconds(Clock::now() - before).count() + stages.idle_ns);
}

TEST_F(EngineTest, StopStringsNeedATokenizer) {
  fake_.checkpoint.tokenizer = nullptr;
  const auto engine = Start();
  Request request = GenerateTokens(5, 5);
  request.Generate()->stop_strings = {"x"};
  EXPECT_EQ(engine->Submit(request, MakeSink()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  request.Generate()->stop_strings = {};
  const auto sink = MakeSink();
  ASSERT_TRUE(engine->Submit(request, sink).ok());
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  EXPECT_EQ(sink->At(0).text, "");
}

TEST_F(EngineTest, OptionsOutOfRangeAreRefused) {
  const auto refuse = [&](EngineOptions options) {
    const auto engine = Engine::Create(&fake_.checkpoint, &fake_.backend, options);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(engine.status().message());
  };
  EXPECT_THAT(refuse({.max_model_len = 0}), HasSubstr("max_model_len = 0 is outside [2, "));
  EXPECT_THAT(refuse({.max_num_seqs = -1}), HasSubstr("max_num_seqs = -1"));
  EXPECT_THAT(refuse({.max_queued_requests = 0}), HasSubstr("max_queued_requests = 0"));
  EXPECT_THAT(refuse({.max_num_batched_tokens = 100000}),
              HasSubstr("max_num_batched_tokens = 100000"));
  EXPECT_THAT(refuse({.page_size = 8}), HasSubstr("page_size = 8"));
  EXPECT_THAT(refuse({.page_size = 48}), HasSubstr("not a power of two"));
  EXPECT_THAT(refuse({.kv_cache_dtype = DType::kBF16}), HasSubstr("kv_cache_dtype = bf16"));
  EXPECT_THAT(refuse({.kv_cache_bytes = -5}), HasSubstr("kv_cache_bytes = -5"));
  EXPECT_THAT(refuse({.max_queued_tokens = -1}), HasSubstr("max_queued_tokens = -1"));
  EXPECT_THAT(refuse({.max_num_partial_prefills = 0}), HasSubstr("max_num_partial_prefills = 0"));
  EXPECT_THAT(refuse({.chunked_prefill_size = 0}), HasSubstr("chunked_prefill_size = 0"));
  fake_.checkpoint.max_num_batched_tokens = 100;
  EXPECT_THAT(refuse({.max_num_batched_tokens = 101}), HasSubstr("100 tokens"));
}

// Many threads submit, cancel and read stats, and the engine is stopped meanwhile: every accepted
// request ends exactly once.
TEST_F(EngineTest, EveryAcceptedRequestEndsOnceUnderContention) {
  const auto engine = Start();
  std::mutex mutex;
  std::vector<std::shared_ptr<RecordingSink>> accepted = {MakeSink()};
  // One at least, whichever thread comes first.
  ASSERT_TRUE(engine->Submit(GenerateTokens(20, 10), accepted[0]).ok());
  std::vector<std::thread> clients;
  for (unsigned client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 random(client);
      for (int i = 0; i < 60; ++i) {
        auto sink = MakeSink();
        Request request = GenerateTokens(1 + int(random() % 80), 1 + int(random() % 60), random());
        request.Generate()->num_choices = 1 + int(random() % 3);
        if (random() % 4 == 0) {
          request.deadline = Clock::now() + std::chrono::microseconds(random() % 3000);
        }
        const auto handle = engine->Submit(std::move(request), sink);
        if (handle.ok()) {
          const std::lock_guard lock(mutex);
          accepted.push_back(sink);
        }
        if (random() % 3 == 0) std::this_thread::yield();
        if (handle.ok() && random() % 3 == 0) handle->Cancel();
        EXPECT_GE(engine->Stats().num_free_pages, 0);
      }
    });
  }
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    engine->Drain(absl::Milliseconds(5));
  });
  for (std::thread& client : clients) client.join();
  stopper.join();
  engine->Drain(absl::ZeroDuration());
  EXPECT_GT(accepted.size(), 0u);
  for (const auto& sink : accepted) EXPECT_TRUE(sink->IsDone());
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(NumUsedPages(*engine), 0);
  EXPECT_EQ(stats.num_waiting, 0);
}

}  // namespace
}  // namespace lssar
