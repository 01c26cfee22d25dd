// Speculative decoding changes no bit of a result, whatever is drafted.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/runtime/generate_cases.h"
#include "tests/runtime/oracle_proposer.h"
#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

class SpeculationBits : public testing::TestWithParam<int> {};  // percent of wrong tokens

TEST_P(SpeculationBits, AreThoseOfNoSpeculation) {
  int num_accepted = 0, num_drafted = 0;
  for (const GenerateCase& test_case : GenerateCases()) {
    SCOPED_TRACE(test_case.name);
    OracleProposer proposer(GetParam());
    SteppedEngine engine(Speculating(&proposer));
    proposer.engine = &engine.Get();
    for (int salt = 0; salt < 3; ++salt) {
      const Request request = RequestOf(test_case, salt);
      const Submitted submitted = engine.Submit(request);
      engine.RunAll();
      ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
      ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions()), request);
      const RequestStats stats = submitted.sink->Stats();
      EXPECT_LE(stats.num_accepted_tokens, stats.num_draft_tokens);
      num_accepted += stats.num_accepted_tokens;
      num_drafted += stats.num_draft_tokens;
    }
    EXPECT_EQ(engine.NumAvailable(), engine.Stats().num_pages);
  }
  EXPECT_GT(num_drafted, 1000);
  if (GetParam() == 100) {
    EXPECT_LT(num_accepted, 10);  // right by chance, after a prompt of one token
  } else {
    EXPECT_GT(num_accepted, 300);
  }
}

INSTANTIATE_TEST_SUITE_P(WrongPercent, SpeculationBits, testing::Values(0, 30, 100));

TEST(Speculation, RightDraftsTakeFewerSteps) {
  OracleProposer proposer(0);
  SteppedEngine engine(Speculating(&proposer, 7));
  proposer.engine = &engine.Get();
  const Submitted submitted = engine.Submit(Generate(Ids(20, 1), 81));
  engine.RunAll();
  // One step for the prompt and its first token, then eight tokens a step.
  EXPECT_EQ(engine.Stats().num_steps, 11);
  EXPECT_EQ(engine.Stats().num_draft_tokens, 70);
  EXPECT_EQ(engine.Stats().num_accepted_tokens, 70);
  EXPECT_EQ(submitted.sink->Stats().num_accepted_tokens, 70);
  EXPECT_EQ(engine.Stats().num_generated_tokens, 81);
}

TEST(Speculation, NgramDraftsOfALoop) {
  EngineOptions options = SmallOptions();
  options.speculative_method = SpeculativeMethod::kNgram;
  options.adapts_speculation = false;
  Request request = Generate(Ids(20, 1), 60);
  request.Generate()->sampling.allowed_ids = {7};  // the text is a loop of one token
  request.Generate()->num_logprobs = 2;
  SteppedEngine engine(options);
  const Submitted submitted = engine.Submit(request);
  engine.RunAll();
  ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions()), request);
  EXPECT_LT(engine.Stats().num_steps, 15);
  EXPECT_EQ(engine.Stats().num_accepted_tokens, engine.Stats().num_draft_tokens);
}

// Where the draft repeats a banned sequence, its last token is not accepted.
TEST(Speculation, BannedSequencesAreNotInTheOutput) {
  EngineOptions options = SmallOptions();
  options.speculative_method = SpeculativeMethod::kNgram;
  options.adapts_speculation = false;
  Request request = Generate(Ids(20, 1), 60);
  SamplingParams& sampling = request.Generate()->sampling;
  sampling.temperature = 0;
  sampling.allowed_ids = {7, 8, 9};
  sampling.logit_bias = {{7, 100.0f}, {8, 50.0f}};
  request.Generate()->banned_sequences = {{7, 7, 7}, {8, 7, 7, 8}};
  request.Generate()->num_logprobs = 2;
  SteppedEngine engine(options);
  const Submitted submitted = engine.Submit(request);
  engine.RunAll();
  ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions()), request);
  EXPECT_GT(engine.Stats().num_accepted_tokens, 0);
  // 7 is the best unless 7 7 precedes it; then 8 is, unless 8 7 7 does: then 9.
  std::vector<int32_t> ids;
  for (const TokenResult& token : submitted.sink->At(0).tokens) ids.push_back(token.id);
  ASSERT_EQ(ids.size(), 60u);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool banned = i >= 2 && ids[i - 1] == 7 && ids[i - 2] == 7;
    const bool also_8 = banned && i >= 3 && ids[i - 3] == 8;
    EXPECT_EQ(ids[i], !banned ? 7 : also_8 ? 9 : 8) << i;
  }
}

TEST(Speculation, TheRequestBoundsItsDrafts) {
  for (const int bound : {0, 2}) {
    OracleProposer proposer(0);
    SteppedEngine engine(Speculating(&proposer, 9));
    proposer.engine = &engine.Get();
    Request request = Generate(Ids(20, 1), 31);
    request.Generate()->speculative_tokens = bound;
    const Submitted submitted = engine.Submit(std::move(request));
    engine.RunAll();
    EXPECT_EQ(engine.Stats().num_steps, 1 + 30 / (1 + bound));
    EXPECT_EQ(engine.Stats().num_draft_tokens, bound == 0 ? 0 : 20);
  }
}

// A prefill takes the step's tokens first, and each decode has its own.
TEST(Speculation, DraftsTakeWhatIsLeftOfTheStep) {
  OracleProposer proposer(50);
  EngineOptions options = Speculating(&proposer, 20);
  options.max_num_batched_tokens = 8;
  SteppedEngine engine(options);
  proposer.engine = &engine.Get();
  int largest = 0;
  engine.fake.model->on_forward = [&](const ForwardBatch& batch) {
    largest = std::max(largest, int(batch.token_ids.size()));
    return absl::OkStatus();
  };
  std::vector<Request> requests;
  std::vector<Submitted> submitted;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(Generate(Ids(20, i), 40, uint64_t(i)));
    submitted.push_back(engine.Submit(requests.back()));
  }
  engine.RunAll();
  EXPECT_EQ(largest, 8);
  EXPECT_GT(engine.Stats().num_accepted_tokens, 0);
  ExpectBitsOfEachAlone(submitted, requests);
}

// The pool holds one and a half of the sequences: they are preempted and recomputed.
TEST(Speculation, PreemptedSequencesHaveTheSameBits) {
  for (const int wrong_percent : {0, 50, 100}) {
    OracleProposer proposer(wrong_percent);
    EngineOptions options = Speculating(&proposer, 20);
    options.kv_cache_bytes = 16 * kPageBytes;
    SteppedEngine engine(options);
    proposer.engine = &engine.Get();
    std::vector<Request> requests;
    std::vector<Submitted> submitted;
    for (int i = 0; i < 4; ++i) {
      requests.push_back(Generate(Ids(10, i), 150, uint64_t(i)));
      requests.back().Generate()->num_logprobs = 1;
      submitted.push_back(engine.Submit(requests.back()));
    }
    engine.RunAll();
    EXPECT_GT(engine.Stats().num_preemptions, 0);
    ExpectBitsOfEachAlone(submitted, requests);
    EXPECT_EQ(engine.NumAvailable(), engine.Stats().num_pages);
  }
}

// Pages of the prefix cache hold accepted tokens only, as many as without speculation.
TEST(Speculation, ThePrefixCacheHasAcceptedTokensOnly) {
  for (const int wrong_percent : {0, 50, 100}) {
    OracleProposer proposer(wrong_percent);
    SteppedEngine engine(Speculating(&proposer, 20));
    proposer.engine = &engine.Get();
    SteppedEngine plain;
    Request first = Generate(Ids(20, 1), 100);
    const Submitted answer = engine.Submit(first);
    plain.Submit(first);
    engine.RunAll();
    plain.RunAll();
    EXPECT_EQ(engine.Stats().num_cached_pages, plain.Stats().num_cached_pages);
    Request second = first;
    for (const int32_t id : IdsOf(answer.sink->At(0).tokens)) second.prompt.push_back(id);
    const Submitted again = engine.Submit(second), expected = plain.Submit(second);
    engine.RunAll();
    plain.RunAll();
    EXPECT_EQ(again.sink->Stats().num_cached_tokens, expected.sink->Stats().num_cached_tokens);
    EXPECT_GT(again.sink->Stats().num_cached_tokens, 100);
    ExpectEqualBits(*again.sink, *expected.sink, second);
  }
}

// A draft takes free pages only, and gives them back when it is rejected.
TEST(Speculation, DraftsEvictAndPreemptNothing) {
  OracleProposer proposer(100);
  EngineOptions options = Speculating(&proposer, 40);
  options.kv_cache_bytes = 16 * kPageBytes;
  options.max_num_batched_tokens = 64;
  int num_cached[2] = {};
  for (const bool speculates : {false, true}) {
    options.num_speculative_tokens = speculates ? 40 : 1;
    SteppedEngine engine(options);
    proposer.engine = &engine.Get();
    engine.Submit(Generate(Ids(16 * 15, 5), 1));  // its 15 pages stay cached
    engine.RunAll();
    EXPECT_EQ(engine.Stats().num_cached_pages, 15);
    engine.Submit(Generate(Ids(8, 6), 60));
    engine.RunAll();
    EXPECT_GT(engine.Stats().num_draft_tokens, 0);
    num_cached[speculates] = engine.Stats().num_cached_pages;
  }
  EXPECT_EQ(num_cached[0], num_cached[1]);
}

// Logits after a draft token that is not the text's are nobody's: NaN there is no error.
TEST(Speculation, NanAfterARejectedTokenIsNoError) {
  constexpr int32_t kPoisonId = 5;
  const Request request = Generate({3, 4, 6, 8}, 30);
  OracleProposer proposer(50, kPoisonId);
  SteppedEngine engine(Speculating(&proposer));
  engine.fake.model->poison_id = kPoisonId;
  proposer.engine = &engine.Get();
  const Submitted submitted = engine.Submit(request);
  engine.RunAll();
  EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
  EXPECT_GT(engine.Stats().num_draft_tokens, 20);
  ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions(), kPoisonId), request);
}

// NaN after a token that was accepted ends the request as without speculation: the same tokens,
// then DATA_LOSS.
TEST(Speculation, NanOfTheTextIsAnErrorAfterTheSameTokens) {
  Request request = Generate(Ids(20, 3), 40);
  const std::vector<int32_t> ids = IdsOf(RunAlone(request, SmallOptions())->At(0).tokens);
  const auto is_first = [&](size_t i) {
    return std::ranges::count(ids.begin(), ids.begin() + std::ptrdiff_t(i), ids[i]) +
               std::ranges::count(request.prompt, ids[i]) ==
           0;
  };
  size_t poisoned = 9;
  while (!is_first(poisoned)) ++poisoned;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const bool speculates : {false, true}) {
    OracleProposer proposer(0);
    SteppedEngine engine(speculates ? Speculating(&proposer) : SmallOptions());
    proposer.engine = &engine.Get();
    // The poisoned id is never drawn by the fake model, so the request allows nothing else there.
    engine.fake.model->poison_id = ids[poisoned];
    Request biased = request;
    biased.Generate()->sampling.logit_bias = {{ids[poisoned], 2e4f}};
    sinks.push_back(engine.Submit(biased).sink);
    engine.RunAll();
    EXPECT_EQ(sinks.back()->Status()->code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(sinks[0]->Status(), sinks[1]->Status());
  EXPECT_TRUE(sinks[0]->At(0) == sinks[1]->At(0));
}

// Runs a request with a clock on which a token costs `token_us` and each further one of a step
// `further_us`. The engine's counters.
EngineStats RunTimed(int wrong_percent, int token_us, int further_us, int num_sequences) {
  OracleProposer proposer(wrong_percent);
  EngineOptions options = SmallOptions();
  options.max_model_len = 1024;
  options.kv_cache_bytes = 64 * 16 * kPageBytes;
  options.max_num_batched_tokens = 256;
  options.proposer = &proposer;
  options.num_speculative_tokens = 8;
  FakeCheckpoint fake;
  Clock::time_point now{std::chrono::hours(1)};
  fake.model->on_forward = [&](const ForwardBatch& batch) {
    now += std::chrono::microseconds(token_us + further_us * (std::ssize(batch.token_ids) - 1));
    return absl::OkStatus();
  };
  const auto engine =
      *Engine::CreateStepped(&fake.checkpoint, &fake.backend, options, [&] { return now; });
  proposer.engine = engine.get();
  for (int i = 0; i < num_sequences; ++i) {
    EXPECT_TRUE(engine->Submit(Generate(Ids(8, i), 900), std::make_shared<RecordingSink>()).ok());
  }
  while (engine->Stats().num_running + engine->Stats().num_waiting > 0) {
    EXPECT_EQ(engine->Step(), absl::OkStatus());
  }
  EXPECT_EQ(engine->Stats().num_generated_tokens, 900 * num_sequences);
  return engine->Stats();
}

TEST(AdaptiveSpeculation, CheapRightDraftsAreLong) {
  const EngineStats stats = RunTimed(0, 1000, 100, 1);
  EXPECT_GT(stats.num_accepted_tokens, 750);
  EXPECT_LT(stats.num_steps, 180);
}

TEST(AdaptiveSpeculation, WrongDraftsStop) {
  const EngineStats stats = RunTimed(100, 1000, 100, 1);
  EXPECT_GT(stats.num_draft_tokens, 0);
  EXPECT_LT(stats.num_draft_tokens, 90);  // 100 us each: 1% of 900 ms
}

TEST(AdaptiveSpeculation, HalfWrongDraftsAreShort) {
  const EngineStats stats = RunTimed(50, 1000, 100, 1);
  EXPECT_GT(stats.num_accepted_tokens, 250);
  EXPECT_LT(stats.num_draft_tokens, 6 * stats.num_accepted_tokens);
}

// Sixteen sequences keep the machine busy: a token more takes as long as one of theirs.
TEST(AdaptiveSpeculation, ABusyBatchDoesNotSpeculate) {
  const EngineStats stats = RunTimed(10, 100, 100, 16);
  EXPECT_LT(stats.num_draft_tokens, 900 * 16 / 100);
}

TEST(Speculation, OptionsAreChecked) {
  FakeCheckpoint fake;
  const auto create = [&](const std::function<void(EngineOptions*)>& change) {
    EngineOptions options = SmallOptions();
    change(&options);
    return std::string(
        Engine::CreateStepped(&fake.checkpoint, &fake.backend, options).status().message());
  };
  EXPECT_EQ(create([](EngineOptions* o) { o->num_speculative_tokens = 0; }),
            "num_speculative_tokens = 0 is outside [1, 64]");
  EXPECT_EQ(create([](EngineOptions* o) { o->prompt_lookup_max = 65; }),
            "prompt_lookup_max = 65 is outside [1, 64]");
  EXPECT_EQ(create([](EngineOptions* o) { o->prompt_lookup_min = 9; }),
            "prompt_lookup_min = 9 is outside [1, 8]");
}

}  // namespace
}  // namespace lssar
