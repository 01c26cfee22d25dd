// What one tenant's requests may do to another's, in steps of the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

constexpr char kAttacker[] = "attacker";
constexpr char kOther[] = "other";

// Steps until the request has its first result.
int StepsToFirstToken(SteppedEngine* engine, const Submitted& submitted) {
  for (int num_steps = 1; num_steps <= 1000; ++num_steps) {
    EXPECT_EQ(engine->Step(), absl::OkStatus());
    if (!submitted.sink->At(0).tokens.empty()) return num_steps;
  }
  return 1001;
}

Request Choices(Request request, int num_choices) {
  request.Generate()->num_choices = num_choices;
  return request;
}

// 16 calls of n = 16 take all places and wait for more.
TEST(FairShare, ManyChoicesDoNotKeepAnotherTenantWaiting) {
  SteppedEngine engine({.max_model_len = 256,
                        .max_num_seqs = 64,
                        .max_queued_requests = 64,
                        .max_num_batched_tokens = 512,
                        .page_size = 16,
                        .kv_cache_bytes = 1024 * kPageBytes});
  std::vector<Submitted> attack;
  for (int i = 0; i < 16; ++i) {
    attack.push_back(engine.Submit(Choices(Generate(Ids(20, i), 200, uint64_t(i)), 16), kAttacker));
  }
  engine.RunSteps(10);
  const Request chat = Generate(Ids(30, 100), 10);
  const auto alone = RunAlone(chat, engine.options);
  for (int i = 0; i < 20; ++i) {
    const Submitted submitted = engine.Submit(chat, kOther);
    EXPECT_EQ(StepsToFirstToken(&engine, submitted), 1) << "call " << i;
    engine.RunSteps(10);
    EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
    EXPECT_EQ(submitted.sink->At(0), alone->At(0)) << "the same bits";
  }
  EXPECT_LE(engine.Stats().num_preemptions, 20)
      << "a preempted sequence does not come back to be preempted again";
  engine.RunAll();
  for (size_t i = 0; i < attack.size(); ++i) {
    const auto alone_too =
        RunAlone(Choices(Generate(Ids(20, int32_t(i)), 200, i), 16), engine.options);
    EXPECT_EQ(attack[i].sink->Status(), absl::OkStatus());
    for (int choice = 0; choice < 16; ++choice) {
      EXPECT_EQ(attack[i].sink->At(choice), alone_too->At(choice)) << "preempted or not";
    }
  }
}

// A paused stream gives its place to the other tenant, which has all of them then.
TEST(FairShare, AStreamThatWasPausedGetsAPlaceAgain) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 4;
  SteppedEngine engine(options);
  const auto attack = [&](int32_t salt) {
    return engine.Submit(Generate(Ids(5, salt), 200, uint64_t(salt)), kAttacker);
  };
  std::vector<Submitted> attacks = {attack(0)};  // the first of all is never preempted
  const Request request = Generate(Ids(10, 9), 100);
  const Submitted stream = engine.Submit(request, kOther);
  engine.RunSteps(10);
  stream.sink->is_writable = false;
  for (int i = 1; i < 4; ++i) attacks.push_back(attack(i));
  engine.RunSteps(10);
  for (const Submitted& submitted : attacks) EXPECT_FALSE(submitted.sink->At(0).tokens.empty());
  const size_t num_tokens = stream.sink->At(0).tokens.size();
  stream.sink->is_writable = true;
  engine.RunSteps(3);
  EXPECT_GT(stream.sink->At(0).tokens.size(), num_tokens);
  engine.RunAll();
  EXPECT_EQ(stream.sink->At(0), RunAlone(request, options)->At(0));
  for (const Submitted& submitted : attacks) EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
}

// Long sequences hold every page.
TEST(FairShare, HeldPagesDoNotKeepAnotherTenantWaiting) {
  SteppedEngine engine({.max_model_len = 256,
                        .max_num_seqs = 16,
                        .max_num_batched_tokens = 64,
                        .page_size = 16,
                        .kv_cache_bytes = 64 * kPageBytes});
  std::vector<Submitted> attack;
  for (int i = 0; i < 12; ++i) {
    attack.push_back(engine.Submit(Generate(Ids(100, i), 150, uint64_t(i)), kAttacker));
  }
  engine.RunSteps(60);
  EXPECT_LT(engine.NumAvailable(), 12);
  for (int i = 0; i < 5; ++i) {
    const Submitted submitted = engine.Submit(Generate(Ids(100, 50 + i), 20), kOther);
    EXPECT_LE(StepsToFirstToken(&engine, submitted), 2) << "100 tokens, 64 a step";
    engine.RunSteps(20);
    EXPECT_EQ(submitted.sink->Status(), absl::OkStatus()) << "call " << i;
  }
  engine.RunAll();
  for (const Submitted& submitted : attack) EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
}

// Long continuations: each of them is hundreds of steps.
TEST(FairShare, LongScoresDoNotKeepAnotherTenantWaiting) {
  SteppedEngine engine({.max_model_len = 8192,
                        .max_num_seqs = 64,
                        .max_num_batched_tokens = 512,
                        .page_size = 16,
                        .kv_cache_bytes = 2048 * kPageBytes});
  std::vector<Submitted> attack;
  for (int call = 0; call < 6; ++call) {
    std::vector<std::vector<int32_t>> continuations;
    for (int i = 0; i < 4; ++i) continuations.push_back(Ids(6000, 10 * call + i));
    attack.push_back(engine.Submit(Score(Ids(20, call), std::move(continuations)), kAttacker));
  }
  engine.RunSteps(15);
  int64_t dearest_step = 0;
  engine.fake.model->on_forward = [&](const ForwardBatch& batch) {
    int64_t cost = 0;
    for (const SequenceSlice& sequence : batch.sequences) {
      for (int i = 0; i < sequence.num_rows; ++i) {
        cost += kKeysPerTokenCost + sequence.first_position + i;
      }
    }
    dearest_step = std::max(dearest_step, cost / kKeysPerTokenCost);
    return absl::OkStatus();
  };
  // The prompt costs as much as 196 tokens, and a step is 4 x 32.
  EXPECT_LE(StepsToFirstToken(&engine, engine.Submit(Generate(Ids(180, 90), 8), kOther)), 2);
  EXPECT_LE(dearest_step, 4 * 32 + 2 * 8) << "and no step is long";
  engine.RunSteps(50);
  EXPECT_LE(StepsToFirstToken(&engine, engine.Submit(Generate(Ids(180, 91), 8), kOther)), 2);
  EXPECT_LE(dearest_step, 4 * 32 + 2 * 8) << "also between its calls";
  for (const Submitted& submitted : attack) submitted.handle.Cancel();
  engine.RunAll();
}

TEST(FairShare, AFullQueueTakesTheRequestsOfOtherTenants) {
  EngineOptions options = SmallOptions();
  options.max_queued_requests = 8;
  SteppedEngine engine(options);
  const auto submit = [&](const std::string& tenant) {
    return engine.Get()
        .Submit(Generate(Ids(5, 1), 5), std::make_shared<RecordingSink>(), tenant)
        .status();
  };
  for (int i = 0; i < 8; ++i) ASSERT_EQ(submit(kAttacker), absl::OkStatus());
  EXPECT_EQ(submit(kAttacker).message(),
            "the queue is full: 8 requests wait (max_queued_requests = 8), 8 of this client");
  EXPECT_EQ(engine.Get().CheckQueueCapacity(kOther), absl::OkStatus());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(submit(kOther), absl::OkStatus()) << "half of the places";
  EXPECT_EQ(submit(kOther).message(),
            "the queue is full: 12 requests wait (max_queued_requests = 8), 4 of this client");
  EXPECT_EQ(engine.Get().CheckQueueCapacity(kAttacker).code(),
            absl::StatusCode::kResourceExhausted);
  engine.RunAll();
}

TEST(FairShare, AQueueFullOfTokensTakesTheRequestsOfOtherTenants) {
  EngineOptions options = SmallOptions();
  options.max_queued_tokens = 80;
  SteppedEngine engine(options);
  const auto submit = [&](const std::string& tenant) {
    return engine.Get()
        .Submit(Generate(Ids(10, 1), 5), std::make_shared<RecordingSink>(), tenant)
        .status();
  };
  for (int i = 0; i < 8; ++i) ASSERT_EQ(submit(kAttacker), absl::OkStatus());
  EXPECT_EQ(submit(kAttacker).message(),
            "the queue is full: 80 queued prompt tokens + 10 of this request = 90 "
            "(max_queued_tokens = 80), 80 of this client");
  EXPECT_EQ(engine.Get().CheckQueueCapacity(kOther), absl::OkStatus());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(submit(kOther), absl::OkStatus()) << "half of the tokens";
  EXPECT_EQ(submit(kOther).message(),
            "the queue is full: 120 queued prompt tokens + 10 of this request = 130 "
            "(max_queued_tokens = 80), 40 of this client");
  EXPECT_EQ(engine.Get().CheckQueueCapacity(kAttacker).code(),
            absl::StatusCode::kResourceExhausted);
  engine.RunAll();
}

// A request that needs every place is admitted though another tenant always has one that runs.
TEST(FairShare, ARequestLargerThanItsShareIsNotOvertakenForEver) {
  Clock::time_point now{std::chrono::hours(1)};
  SteppedEngine engine(SmallOptions(), [&] { return now; });
  std::vector<Submitted> small = {engine.Submit(Generate(Ids(5, 1), 40), kOther)};
  engine.RunSteps(1);
  const Submitted large = engine.Submit(Choices(Generate(Ids(5, 2), 5), 16), kAttacker);
  int num_steps = 0;
  for (; large.sink->At(0).tokens.empty() && num_steps < 2000; ++num_steps) {
    now += std::chrono::milliseconds(20);
    if (num_steps % 20 == 0) small.push_back(engine.Submit(Generate(Ids(5, 3), 40), kOther));
    engine.RunSteps(1);
  }
  EXPECT_GE(num_steps, 500) << "overtaken for ten seconds";
  EXPECT_LE(num_steps, 600) << "then it waits for the others that run, and for no other";
  engine.RunAll();
  for (const Submitted& submitted : small) EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
}

// Prompt and output tokens that a tenant's running requests have computed.
int NumComputed(const SteppedEngine& engine, const std::string& tenant) {
  int num_tokens = 0;
  engine.ForEachSequence([&](const SequenceGroup& group, const Sequence& sequence) {
    if (group.tenant == tenant) num_tokens += sequence.num_computed_tokens;
  });
  return num_tokens;
}

// A tenant that asks seldom has left its part of the steps to others. Its next prompt comes before
// their tokens, for two steps at most: then the steps are shared equally again.
TEST(FairShare, ATenantThatAsksSeldomComesFirstForTwoSteps) {
  SteppedEngine engine({.max_model_len = 2048,
                        .max_num_seqs = 64,
                        .max_num_batched_tokens = 512,
                        .page_size = 16,
                        .kv_cache_bytes = 2048 * kPageBytes});
  std::vector<Submitted> attack;
  for (int i = 0; i < 50; ++i) {
    attack.push_back(engine.Submit(Generate(Ids(20, i), 400, uint64_t(i)), kAttacker));
  }
  engine.RunSteps(30);
  for (int i = 0; i < 3; ++i) {
    const Submitted submitted = engine.Submit(Generate(Ids(200, 100 + i), 2), kOther);
    EXPECT_EQ(StepsToFirstToken(&engine, submitted), 2) << "call " << i;
    engine.RunSteps(10);
  }
  engine.Submit(Generate(Ids(2000, 200), 2), kOther);
  std::vector<int> of_attacker, of_other;
  for (int i = 0; i < 6; ++i) {
    const int attacker_before = NumComputed(engine, kAttacker);
    const int other_before = NumComputed(engine, kOther);
    engine.RunSteps(1);
    of_attacker.push_back(NumComputed(engine, kAttacker) - attacker_before);
    of_other.push_back(NumComputed(engine, kOther) - other_before);
  }
  for (const int i : {0, 1}) {
    EXPECT_GE(of_attacker[size_t(i)], 1) << "step " << i;
    EXPECT_GE(of_other[size_t(i)], 100) << "step " << i;
  }
  for (const int i : {3, 4, 5}) {
    EXPECT_EQ(of_attacker[size_t(i)], 50) << "step " << i << ": each has its token";
    EXPECT_GE(of_other[size_t(i)], 40) << "step " << i;
  }
  for (const Submitted& submitted : attack) submitted.handle.Cancel();
  engine.RunAll();
}

// An engine whose attacker is 4096 tokens deep in a prompt.
class InterruptedSteps : public ::testing::Test {
 protected:
  InterruptedSteps() { StepTo(4096); }
  ~InterruptedSteps() override { engine_.fake.model->on_forward = nullptr; }

  void StepTo(int num_tokens) {
    for (int i = 0; i < 1000 && NumComputed(engine_, kAttacker) < num_tokens; ++i) {
      engine_.RunSteps(1);
    }
    ASSERT_GE(NumComputed(engine_, kAttacker), num_tokens);
  }
  // The attacker's tokens of the next step, during which the other tenant submits a request.
  int StepWhileAnotherComes() {
    engine_.fake.model->on_forward = [this](const ForwardBatch& batch) {
      may_be_interrupted_ = batch.interrupt != nullptr;
      came_ = engine_.Submit(chat_, kOther);
      return absl::OkStatus();
    };
    const int num_tokens = Step();
    engine_.fake.model->on_forward = nullptr;
    return num_tokens;
  }
  // The attacker's tokens of the next step.
  int Step() {
    const int before = NumComputed(engine_, kAttacker);
    engine_.RunSteps(1);
    return NumComputed(engine_, kAttacker) - before;
  }

  Clock::time_point now_ = Noon();
  SteppedEngine engine_{{.max_model_len = 12000,
                         .max_num_seqs = 4,
                         .max_num_batched_tokens = 256,
                         .enable_prefix_caching = false,
                         .page_size = 16,
                         .kv_cache_bytes = 1024 * kPageBytes},
                        [this] { return now_; }};
  const Request long_prompt_ = Generate(Ids(9000, 1), 20, 7);
  const Request chat_ = Generate(Ids(20, 2), 3);
  const Submitted attack_ = engine_.Submit(long_prompt_, kAttacker);
  Submitted came_;
  bool may_be_interrupted_ = false;
};

TEST_F(InterruptedSteps, AnotherTenantsRequestDoesNotWaitForALongStep) {
  const int64_t num_steps = engine_.Stats().num_steps;
  EXPECT_EQ(StepWhileAnotherComes(), 0) << "ended without a result";
  EXPECT_EQ(engine_.Stats().num_steps, num_steps) << "and is no step";
  EXPECT_EQ(StepsToFirstToken(&engine_, came_), 1);
  EXPECT_NEAR(Step(), 4 * 32 / 5, 1) << "a shared step: a token after 4096 keys costs five";
  engine_.RunAll();
  EXPECT_EQ(came_.sink->At(0), RunAlone(chat_, engine_.options)->At(0));
  EXPECT_EQ(attack_.sink->At(0), RunAlone(long_prompt_, engine_.options)->At(0)) << "same bits";
}

TEST_F(InterruptedSteps, RequestsThatAreCancelledDoNotKeepATenantFromItsTokens) {
  int num_tokens = 0;
  for (int i = 0; i < 100; ++i) {
    num_tokens += StepWhileAnotherComes();
    came_.handle.Cancel();
    now_ += std::chrono::milliseconds{50};
  }
  EXPECT_GE(num_tokens, 99 * (4 * 32 / 7)) << "but for the first step";
}

TEST_F(InterruptedSteps, AfterTenSecondsStepsAreLongAgain) {
  EXPECT_EQ(StepWhileAnotherComes(), 0);
  came_.handle.Cancel();
  EXPECT_NEAR(Step(), 4 * 32 / 5, 1) << "nobody is there, but somebody came";
  now_ += Tenants::kMemory + std::chrono::seconds{1};
  EXPECT_EQ(Step(), 256);
  EXPECT_EQ(StepWhileAnotherComes(), 0);
}

// As any other step whose device fails.
TEST_F(InterruptedSteps, ADeviceThatFailsEndsItsRequests) {
  engine_.fake.model->on_synchronize = [] { return absl::InternalError("the device"); };
  engine_.fake.model->on_forward = [this](const ForwardBatch& /*batch*/) {
    came_ = engine_.Submit(chat_, kOther);
    return absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsInternal(engine_.Step()));
  engine_.fake.model->on_synchronize = nullptr;
  engine_.fake.model->on_forward = nullptr;
  EXPECT_TRUE(absl::IsInternal(attack_.sink->Status().value_or(absl::OkStatus())));
  engine_.RunAll();
  EXPECT_EQ(came_.sink->At(0), RunAlone(chat_, engine_.options)->At(0));
}

TEST_F(InterruptedSteps, ItsOwnRequestsInterruptNothing) {
  engine_.fake.model->on_forward = [this](const ForwardBatch& /*batch*/) {
    came_ = engine_.Submit(chat_, kAttacker);
    return absl::OkStatus();
  };
  EXPECT_EQ(Step(), 256);
}

// Its prompt is computed as any other's. A step with a captured row would give it twice.
TEST_F(InterruptedSteps, OfACaptureThePromptIsInterruptedAndItsRowsAreNot) {
  attack_.handle.Cancel();
  engine_.RunAll();
  Request capture = long_prompt_;
  capture.params = CaptureParams{.layers = {0}, .heads = {0}, .rows = {5500}};
  const Submitted captured = engine_.Submit(capture, kAttacker);
  StepTo(4096);
  EXPECT_EQ(StepWhileAnotherComes(), 0);
  now_ += Tenants::kMemory + std::chrono::seconds{1};
  came_.handle.Cancel();
  StepTo(5500 - 200);
  StepWhileAnotherComes();
  EXPECT_FALSE(may_be_interrupted_);
  engine_.RunAll();
  EXPECT_EQ(captured.sink->Status(), absl::OkStatus());
}

// One of several captures runs in a step.
TEST(FairShare, CapturesDoNotKeepAnotherTenantsCaptureWaiting) {
  SteppedEngine engine({.max_model_len = 4096,
                        .max_num_seqs = 16,
                        .max_num_batched_tokens = 512,
                        .page_size = 16,
                        .kv_cache_bytes = 2048 * kPageBytes});
  const auto capture = [](int num_tokens, int first, std::vector<int32_t> rows) {
    Request request = Generate(Ids(num_tokens, first), 1);
    request.params =
        CaptureParams{.layers = {0}, .heads = {0}, .rows = std::move(rows), .statistics = true};
    return request;
  };
  std::vector<int32_t> all_rows(3000);
  std::iota(all_rows.begin(), all_rows.end(), 0);
  std::vector<Submitted> attack;
  for (int i = 0; i < 4; ++i) {
    attack.push_back(engine.Submit(capture(3000, i, all_rows), kAttacker));
  }
  engine.RunSteps(20);
  for (int i = 0; i < 5; ++i) {
    const Submitted submitted = engine.Submit(capture(16, 50 + i, {15}), kOther);
    int num_steps = 0;
    while (!submitted.sink->Status() && num_steps < 100) {
      engine.RunSteps(1);
      ++num_steps;
    }
    EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
    EXPECT_LE(num_steps, 3) << "call " << i;
  }
  EXPECT_FALSE(attack.back().sink->Status().has_value()) << "the others took longer";
  engine.RunAll();
  for (const Submitted& submitted : attack) EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
}

TEST_F(InterruptedSteps, ShortStepsRunToTheirEnd) {
  StepTo(int(long_prompt_.prompt.size()) - 10);
  StepWhileAnotherComes();
  EXPECT_FALSE(may_be_interrupted_);
}

// Two tenants with more work than the engine can do get the same number of tokens.
TEST(FairShare, TenantsGetEqualPartsOfTheSteps) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 64;
  options.kv_cache_bytes = 256 * kPageBytes;
  options.chunked_prefill_size = 4;
  SteppedEngine engine(options);
  std::vector<Submitted> many, few;
  for (int i = 0; i < 12; ++i) {
    many.push_back(engine.Submit(Generate(Ids(200, i), 50, uint64_t(i)), kAttacker));
  }
  for (int i = 0; i < 2; ++i) {
    few.push_back(engine.Submit(Generate(Ids(200, 50 + i), 50, uint64_t(i)), kOther));
  }
  for (int i = 0; i < 25; ++i) {
    engine.RunSteps(1);
    EXPECT_NEAR(NumComputed(engine, kOther), NumComputed(engine, kAttacker), 4) << "step " << i;
  }
  engine.RunAll();
}

}  // namespace
}  // namespace lssar
