// A draft model: the same bits, right drafts, bounded work, no lost page, harmless failures.
#include "runtime/draft_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/runtime/generate_cases.h"
#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

// An engine over the fake model with a draft model that is wrong in `wrong_percent` of the texts,
// and otherwise the same model.
class DraftingEngine {
 public:
  explicit DraftingEngine(int wrong_percent = 0,
                          const std::function<void(EngineOptions*)>& change = nullptr) {
    draft.model->wrong_percent = wrong_percent;
    EngineOptions options = SmallOptions();
    options.speculative_method = SpeculativeMethod::kDraftModel;
    options.draft_checkpoint = &draft.checkpoint;
    options.num_speculative_tokens = 5;
    options.adapts_speculation = false;
    if (change) change(&options);
    engine = std::make_unique<SteppedEngine>(options);
  }

  EngineStats Stats() const { return engine->Stats(); }
  void ExpectNoPageInUse() const {
    EXPECT_EQ(engine->NumAvailable(), Stats().num_pages);
    EXPECT_EQ(Stats().num_free_draft_model_pages, Stats().num_draft_model_pages);
    EXPECT_EQ(Stats().num_draft_model_pages, Stats().num_pages);
  }

  FakeCheckpoint draft;
  std::unique_ptr<SteppedEngine> engine;
};

int NumDraftPagesInUse(const DraftingEngine& drafting) {
  return drafting.Stats().num_draft_model_pages - drafting.Stats().num_free_draft_model_pages;
}

class DraftModelBits : public testing::TestWithParam<int> {};  // percent of wrong texts

// All kinds of requests side by side, twice: the second time from the prefix cache.
TEST_P(DraftModelBits, AreThoseOfNoSpeculation) {
  DraftingEngine drafting(GetParam());
  std::vector<Request> requests;
  for (const GenerateCase& test_case : GenerateCases()) {
    for (int salt = 0; salt < 2; ++salt) requests.push_back(RequestOf(test_case, salt));
  }
  requests.push_back(Score(Ids(30, 3), {Ids(9, 4), Ids(2, 5)}));
  requests.push_back({.prompt = Ids(40, 6), .params = EmbedParams{}});
  for (int round = 0; round < 2; ++round) {
    std::vector<Submitted> submitted;
    for (const Request& request : requests) submitted.push_back(drafting.engine->Submit(request));
    drafting.engine->RunAll();
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i < 2 * GenerateCases().size() ? GenerateCases()[i / 2].name : "score or embed");
      ASSERT_EQ(submitted[i].sink->Status(), absl::OkStatus());
      ExpectEqualBits(*submitted[i].sink, *RunAlone(requests[i], SmallOptions()), requests[i]);
    }
    drafting.ExpectNoPageInUse();
  }
  const EngineStats stats = drafting.Stats();
  EXPECT_GT(stats.num_draft_tokens, 800);
  if (GetParam() == 0) {
    EXPECT_GT(stats.num_accepted_tokens, stats.num_draft_tokens * 6 / 10);
  }
  if (GetParam() == 40) {
    EXPECT_GT(stats.num_accepted_tokens, stats.num_draft_tokens / 5);
  }
  if (GetParam() == 100) {
    EXPECT_LT(stats.num_accepted_tokens, stats.num_draft_tokens / 10);
  }
}

INSTANTIATE_TEST_SUITE_P(WrongPercent, DraftModelBits, testing::Values(0, 40, 100));

// A draft model that equals the served one is right, so every page, position, rope base and sample
// of it is.
TEST(DraftModel, AnEqualModelIsAlwaysRight) {
  DraftingEngine drafting(0, [](EngineOptions* options) { options->max_num_batched_tokens = 48; });
  for (int round = 0; round < 2; ++round) {
    std::vector<Submitted> submitted;
    for (int i = 0; i < 3; ++i) {
      Request request = Generate(Ids(17 + 13 * i, i), 75, uint64_t(i));
      request.Generate()->num_choices = 1 + i;
      request.Generate()->sampling.frequency_penalty = float(i) * 0.2f;
      submitted.push_back(drafting.engine->Submit(request));
    }
    drafting.engine->RunAll();
    for (const Submitted& each : submitted) {
      const RequestStats stats = each.sink->Stats();
      EXPECT_GT(stats.num_draft_tokens, 40);
      EXPECT_EQ(stats.num_accepted_tokens, stats.num_draft_tokens);
    }
  }
  drafting.ExpectNoPageInUse();
}

// k draft tokens are k forwards of all sequences together; after an accepted draft the first one
// also computes the draft's last token.
TEST(DraftModel, SequencesDraftTogether) {
  DraftingEngine drafting(0, [](EngineOptions* options) { options->max_num_batched_tokens = 64; });
  std::vector<int> sizes;
  for (int i = 0; i < 4; ++i) drafting.engine->Submit(Generate(Ids(6, i), 100, uint64_t(i)));
  drafting.engine->RunSteps(2);
  drafting.draft.model->on_forward = [&](const ForwardBatch& batch) {
    sizes.push_back(int(batch.token_ids.size()));
    EXPECT_EQ(batch.sequences.size(), 4u);
    return absl::OkStatus();
  };
  drafting.engine->RunSteps(2);
  EXPECT_EQ(sizes, (std::vector<int>{8, 4, 4, 4, 4, 8, 4, 4, 4, 4}));
}

// Rejected drafts are rolled back: without that, every draft after the first mistake is wrong.
TEST(DraftModel, AMistakeDoesNotSpoilLaterDrafts) {
  DraftingEngine drafting(30, [](EngineOptions* options) { options->num_speculative_tokens = 1; });
  const Submitted submitted = drafting.engine->Submit(Generate(Ids(20, 1), 200));
  drafting.engine->RunAll();
  const RequestStats stats = submitted.sink->Stats();
  EXPECT_NEAR(double(stats.num_accepted_tokens) / stats.num_draft_tokens, 0.7, 0.12);
}

// A prompt is caught up with in chunks of chunked_prefill_size tokens, before anything is drafted.
TEST(DraftModel, CatchingUpIsBoundedInAStep) {
  DraftingEngine drafting(0, [](EngineOptions* options) {
    options->max_num_batched_tokens = 200;
    options->chunked_prefill_size = 12;
  });
  std::vector<int> sizes;
  drafting.draft.model->on_forward = [&](const ForwardBatch& batch) {
    sizes.push_back(int(batch.token_ids.size()));
    return absl::OkStatus();
  };
  drafting.engine->Submit(Generate(Ids(50, 1), 100));
  drafting.engine->RunSteps(1);
  EXPECT_TRUE(sizes.empty()) << "the first token does not wait for the draft model";
  drafting.engine->RunSteps(5);
  EXPECT_EQ(drafting.Stats().num_draft_tokens, 5);
  // 50 prompt tokens and 5 sampled ones: four chunks, then 7 tokens and four drafted ones.
  EXPECT_EQ(sizes, (std::vector<int>{12, 12, 12, 12, 7, 1, 1, 1, 1}));
}

// The second request finds its prompt in the prefix cache of the draft model.
TEST(DraftModel, PromptsShareTheirPages) {
  DraftingEngine drafting(0);
  Request request = Generate(Ids(100, 1), 20);
  drafting.engine->Submit(request);
  drafting.engine->RunAll();
  const int64_t num_first = drafting.engine->Get().GetDraftModel()->NumBatchedTokens();
  request.Generate()->sampling.seed = 2;
  drafting.engine->Submit(request);
  drafting.engine->RunAll();
  EXPECT_LT(drafting.engine->Get().GetDraftModel()->NumBatchedTokens() - num_first, 50);
  request.cache_salt = "another user";
  const int64_t num_second = drafting.engine->Get().GetDraftModel()->NumBatchedTokens();
  drafting.engine->Submit(request);
  drafting.engine->RunAll();
  EXPECT_GT(drafting.engine->Get().GetDraftModel()->NumBatchedTokens() - num_second, 100);
}

// Drafts that bring nothing end the work of catching up: one context at first, then 1/32 of a token
// for each decode.
TEST(DraftModel, WorkThatBringsNothingEnds) {
  DraftingEngine drafting(100, [](EngineOptions* options) {
    options->enable_prefix_caching = false;
    options->max_queued_tokens = 100000;
    options->max_num_batched_tokens = 64;
    options->num_speculative_tokens = 1;
  });
  constexpr int kRequests = 40, kPrompt = 150, kTokens = 20;
  for (int i = 0; i < kRequests; ++i) {
    drafting.engine->Submit(Generate(Ids(kPrompt, i), kTokens, uint64_t(i)));
  }
  drafting.engine->RunAll();
  EXPECT_EQ(drafting.Stats().num_generated_tokens, kRequests * kTokens);
  const DraftModel& model = *drafting.engine->Get().GetDraftModel();
  EXPECT_GT(model.NumBatchedTokens(), 256);
  EXPECT_LT(model.NumBatchedTokens(), 600) << "of " << kRequests * kPrompt << " prompt tokens";
  drafting.ExpectNoPageInUse();
}

// The pools hold one and a half of the sequences. They are preempted and recomputed; only those
// whose pages can be reserved are drafted for.
TEST(DraftModel, OutOfPagesItDraftsForFewerSequences) {
  for (const int wrong_percent : {0, 50}) {
    DraftingEngine drafting(
        wrong_percent, [](EngineOptions* options) { options->kv_cache_bytes = 16 * kPageBytes; });
    std::vector<Request> requests;
    std::vector<Submitted> submitted;
    for (int i = 0; i < 4; ++i) {
      requests.push_back(Generate(Ids(10, i), 150, uint64_t(i)));
      requests.back().Generate()->num_logprobs = 1;
      submitted.push_back(drafting.engine->Submit(requests.back()));
    }
    drafting.engine->RunAll();
    EXPECT_GT(drafting.Stats().num_preemptions, 0);
    ExpectBitsOfEachAlone(submitted, requests);
    int num_drafted_for = 0;
    for (const Submitted& each : submitted) {
      num_drafted_for += each.sink->Stats().num_draft_tokens > 0;
    }
    EXPECT_GT(num_drafted_for, 0);
    drafting.ExpectNoPageInUse();
  }
}

TEST(DraftModel, ACancelledRequestFreesItsPages) {
  DraftingEngine drafting(50);
  const Submitted first = drafting.engine->Submit(Generate(Ids(40, 1), 200));
  const Submitted second = drafting.engine->Submit(Generate(Ids(40, 2), 200));
  drafting.engine->RunSteps(12);
  const int num_used = NumDraftPagesInUse(drafting);
  EXPECT_GE(num_used, 6);
  first.handle.Cancel();
  drafting.engine->RunSteps(1);
  EXPECT_LT(NumDraftPagesInUse(drafting), num_used);
  EXPECT_GE(NumDraftPagesInUse(drafting), 3);
  second.handle.Cancel();
  ASSERT_EQ(drafting.engine->Step(), absl::OkStatus());
  drafting.ExpectNoPageInUse();
}

// A failed step of the served model ends its requests; their draft pages are freed.
TEST(DraftModel, AFailedStepFreesThePages) {
  DraftingEngine drafting(50);
  const Submitted submitted = drafting.engine->Submit(Generate(Ids(40, 1), 200));
  drafting.engine->RunSteps(8);
  EXPECT_GT(NumDraftPagesInUse(drafting), 0);
  drafting.engine->fake.model->on_forward = [](const ForwardBatch&) {
    return absl::InternalError("a broken device");
  };
  EXPECT_FALSE(drafting.engine->Step().ok());
  EXPECT_EQ(submitted.sink->Status()->code(), absl::StatusCode::kInternal);
  drafting.ExpectNoPageInUse();
}

TEST(DraftModel, AFailedForwardFailsNoRequest) {
  for (const bool fails_always : {false, true}) {
    DraftingEngine drafting(0);
    int num_forwards = 0;
    drafting.draft.model->on_forward = [&](const ForwardBatch&) {
      ++num_forwards;
      return fails_always || num_forwards % 7 == 0 ? absl::InternalError("a broken draft model")
                                                   : absl::OkStatus();
    };
    const Request request = Generate(Ids(20, 1), 150);
    const Submitted submitted = drafting.engine->Submit(request);
    drafting.engine->RunAll();
    ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
    ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions()), request);
    drafting.ExpectNoPageInUse();
    if (fails_always) {
      EXPECT_EQ(num_forwards, limits::kMaxFailedSteps) << "then it is given up";
      EXPECT_EQ(drafting.Stats().num_draft_tokens, 0);
    } else {
      EXPECT_GT(drafting.Stats().num_accepted_tokens, 80);
      EXPECT_EQ(submitted.sink->Stats().num_accepted_tokens,
                submitted.sink->Stats().num_draft_tokens);
    }
    EXPECT_EQ(drafting.Stats().num_draft_model_failures, num_forwards / (fails_always ? 1 : 7));
  }
}

// NaN logits of the draft model end the drafts of that sequence.
TEST(DraftModel, NanFailsNoRequest) {
  const Request request = Generate(Ids(20, 3), 100), other = Generate({3, 4}, 60);
  const std::vector<int32_t> ids = IdsOf(RunAlone(request, SmallOptions())->At(0).tokens);
  DraftingEngine drafting(0);
  drafting.draft.model->poison_id = ids[40];
  const Submitted submitted = drafting.engine->Submit(request);
  drafting.engine->RunAll();
  ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
  ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions()), request);
  EXPECT_EQ(drafting.Stats().num_draft_model_failures, 1);
  EXPECT_GT(submitted.sink->Stats().num_draft_tokens, 0);
  EXPECT_LT(submitted.sink->Stats().num_draft_tokens, 60);
  const Submitted next = drafting.engine->Submit(other);
  drafting.engine->RunAll();
  EXPECT_GT(next.sink->Stats().num_draft_tokens, 0) << "the next request is drafted for";
  drafting.ExpectNoPageInUse();
}

// The served model takes 1000 us for a token and 50 us for each further one of a step, the draft
// model `draft_us` for a forward.
EngineStats RunTimed(int wrong_percent, int draft_us) {
  Clock::time_point now{std::chrono::hours(1)};
  FakeCheckpoint fake, draft;
  draft.model->wrong_percent = wrong_percent;
  fake.model->on_forward = [&](const ForwardBatch& batch) {
    now += std::chrono::microseconds(1000 + 50 * (std::ssize(batch.token_ids) - 1));
    return absl::OkStatus();
  };
  draft.model->on_forward = [&](const ForwardBatch&) {
    now += std::chrono::microseconds(draft_us);
    return absl::OkStatus();
  };
  EngineOptions options = SmallOptions();
  options.max_model_len = 1024;
  options.kv_cache_bytes = 64 * 16 * kPageBytes;
  options.max_num_batched_tokens = 256;
  options.speculative_method = SpeculativeMethod::kDraftModel;
  options.draft_checkpoint = &draft.checkpoint;
  const auto engine =
      *Engine::CreateStepped(&fake.checkpoint, &fake.backend, options, [&] { return now; });
  EXPECT_TRUE(engine->Submit(Generate(Ids(8, 1), 900), std::make_shared<RecordingSink>()).ok());
  while (engine->Stats().num_running + engine->Stats().num_waiting > 0) {
    EXPECT_EQ(engine->Step(), absl::OkStatus());
  }
  EXPECT_EQ(engine->Stats().num_generated_tokens, 900);
  return engine->Stats();
}

TEST(DraftModel, ItsTimeCountsAsTheCostOfADraft) {
  const EngineStats cheap = RunTimed(0, 50), fair = RunTimed(30, 150), dear = RunTimed(0, 1200);
  EXPECT_GT(cheap.num_accepted_tokens, 750);
  EXPECT_LT(cheap.num_steps, 150);
  EXPECT_GT(fair.num_accepted_tokens, 350);
  EXPECT_LT(dear.num_draft_tokens, 60) << "right, and slower than no draft";
}

TEST(DraftModel, OptionsAndCheckpointsAreChecked) {
  FakeCheckpoint fake, draft, other(32);
  const auto create = [&](Checkpoint* checkpoint, SpeculativeMethod method) {
    EngineOptions options = SmallOptions();
    options.speculative_method = method;
    options.draft_checkpoint = checkpoint;
    return Engine::CreateStepped(&fake.checkpoint, &fake.backend, options).status();
  };
  EXPECT_EQ(create(&draft.checkpoint, SpeculativeMethod::kDraftModel), absl::OkStatus());
  EXPECT_EQ(create(nullptr, SpeculativeMethod::kDraftModel).message(),
            "the speculative method draft-model needs a draft_checkpoint");
  EXPECT_EQ(create(&draft.checkpoint, SpeculativeMethod::kNgram).message(),
            "a draft_checkpoint needs the speculative method draft-model");
  EXPECT_EQ(create(&other.checkpoint, SpeculativeMethod::kDraftModel).message(),
            "the draft model has a vocabulary of 32 ids, the served model of 64; they must be "
            "equal");
  draft.checkpoint.max_num_batched_tokens = 23;
  EXPECT_EQ(
      create(&draft.checkpoint, SpeculativeMethod::kDraftModel).message(),
      "max_num_batched_tokens = 24 is over the 23 tokens that the draft model was loaded for");
  draft.checkpoint.tokenizer = nullptr;
  EXPECT_EQ(create(&draft.checkpoint, SpeculativeMethod::kDraftModel).message(),
            "the draft model's tokenizer has the hash none, the served model's fake; they must be "
            "equal");
}

// A device with its own memory.
class DeviceBackend : public MemoryBackend {
 public:
  std::string_view Name() const override { return "cuda:0"; }
  absl::StatusOr<std::optional<int64_t>> FreeBytes() override { return int64_t{1} << 30; }
};

TEST(DraftModel, ADeviceWithItsOwnMemoryIsRefused) {
  FakeCheckpoint fake, draft;
  DeviceBackend backend;
  EngineOptions options = SmallOptions();
  options.speculative_method = SpeculativeMethod::kDraftModel;
  options.draft_checkpoint = &draft.checkpoint;
  const absl::Status status = Engine::CreateStepped(&fake.checkpoint, &backend, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "the device cuda:0 runs no draft model; cpu and reference do");
}

}  // namespace
}  // namespace lssar
