// The engine on the checkpoint that ships with the project: equal bits in any batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "runtime/engine.h"
#include "runtime/proposer.h"
#include "runtime/sequence.h"
#include "tests/support/recording_sink.h"

namespace lssar {
namespace {

constexpr const char* kCheckpoint = "models/zoo/lssar-6m";
constexpr int kMaxModelLen = 2048;

struct Setting {
  const char* checkpoint = kCheckpoint;
  int max_model_len = kMaxModelLen;
  int num_threads = 2;
  int max_num_batched_tokens = 512;
  int page_size = 64;
  DType kv_cache_dtype = DType::kF16;
  bool enable_prefix_caching = false;
  int num_pages = 0;  // 0: the default pool
  bool speculates = false;
  Proposer* proposer = nullptr;           // in place of n-grams
  std::optional<DType> draft_dtype = {};  // of a draft model: the same checkpoint
};

// A model on its own backend, and an engine on top.
class Server {
 public:
  explicit Server(const Setting& setting) {
    auto backend = MakeBackend({.name = "cpu", .num_threads = setting.num_threads});
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    LoadOptions load_options;
    load_options.max_num_batched_tokens = setting.max_num_batched_tokens;
    auto checkpoint = LoadCheckpoint(setting.checkpoint, backend_.get(), load_options);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = std::make_unique<Checkpoint>(*std::move(checkpoint));
    if (setting.draft_dtype) {
      load_options.dtype = setting.draft_dtype;
      draft_ =
          std::make_unique<Checkpoint>(*LoadCheckpoint(kCheckpoint, backend_.get(), load_options));
    }
    KvLayout layout = LayoutOf(checkpoint_->config, setting.kv_cache_dtype, setting.page_size);
    auto engine =
        Engine::Create(checkpoint_.get(), backend_.get(),
                       {.max_model_len = setting.max_model_len,
                        .max_num_seqs = 16,
                        .max_num_batched_tokens = setting.max_num_batched_tokens,
                        .enable_prefix_caching = setting.enable_prefix_caching,
                        .page_size = setting.page_size,
                        .kv_cache_dtype = setting.kv_cache_dtype,
                        .kv_cache_bytes = setting.num_pages * int64_t(layout.PageBytes()),
                        .speculative_method = setting.draft_dtype  ? SpeculativeMethod::kDraftModel
                                              : setting.speculates ? SpeculativeMethod::kNgram
                                                                   : SpeculativeMethod::kOff,
                        .num_speculative_tokens = setting.draft_dtype ? 4 : 9,
                        .prompt_lookup_min = 1,
                        .draft_checkpoint = draft_.get(),
                        .adapts_speculation = false,
                        .proposer = setting.proposer});
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  std::shared_ptr<RecordingSink> Submit(const Request& request) {
    auto sink = std::make_shared<RecordingSink>();
    EXPECT_TRUE(engine_->Submit(request, sink).ok());
    return sink;
  }
  std::shared_ptr<RecordingSink> RunAlone(const Request& request) {
    auto sink = Submit(request);
    EXPECT_EQ(sink->Wait(), absl::OkStatus());
    return sink;
  }
  const Tokenizer& Text() const { return *checkpoint_->tokenizer; }
  EngineStats Stats() const { return engine_->Stats(); }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Checkpoint> checkpoint_, draft_;
  std::unique_ptr<Engine> engine_;
};

std::vector<int32_t> Prompt(const Tokenizer& tokenizer, int num_tokens) {
  const std::string story =
      "Once upon a time there was a little girl who lived by the sea. Zur\u00fcck \u65e5\u672c "
      "\U0001F600 caf\u00e9. The pass key is 71432. Remember it. ";
  std::string text;
  for (int i = 0; i < 40; ++i) text += story;
  std::vector<int32_t> ids = tokenizer.Encode(text).value();
  EXPECT_GE(std::ssize(ids), num_tokens);
  ids.resize(size_t(num_tokens));
  return ids;
}

std::vector<Request> MixedRequests(const Tokenizer& tokenizer) {
  std::vector<Request> requests;
  for (const int length : {1, 2, 3, 15, 16, 17, 63, 64, 65, 129, 300, 1300}) {
    Request request{.prompt = Prompt(tokenizer, length)};
    if (length % 64 == 1 && length > 1) {
      request.params = CaptureParams{.layers = {0, 5},
                                     .heads = {1, 3},
                                     .rows = {length / 2, length - 2, length - 1},
                                     .top_k = length == 65 ? 9 : 0};
    } else if (length % 3 == 0) {
      const std::vector<int32_t> all = Prompt(tokenizer, length + 40);
      request.params = ScoreParams{
          .continuations = {{all.begin() + length, all.end()}, {5}, {7, 8, 9}}, .num_logprobs = 2};
    } else {
      request.params = GenerateParams{.sampling = {.temperature = length % 2 == 0 ? 0.0f : 0.9f,
                                                   .top_p = 0.95f,
                                                   .seed = uint64_t(length)},
                                      .num_choices = length == 17 ? 3 : 1,
                                      .max_tokens = 24,
                                      .num_logprobs = 2,
                                      .num_prompt_logprobs = length == 64 ? 1 : -1};
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

using Sinks = std::vector<std::shared_ptr<RecordingSink>>;

Sinks RunEachAlone(Server* server, const std::vector<Request>& requests) {
  Sinks sinks;
  for (const Request& request : requests) sinks.push_back(server->RunAlone(request));
  return sinks;
}

// Runs all requests together.
void ExpectBits(const Sinks& expected, Server* server, const std::vector<Request>& requests) {
  Sinks sinks;
  for (const Request& request : requests) sinks.push_back(server->Submit(request));
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "prompt of " << requests[i].prompt.size());
    ASSERT_EQ(sinks[i]->Wait(), absl::OkStatus());
    ExpectEqualBits(*sinks[i], *expected[i], requests[i]);
  }
}

TEST(CheckpointEngine, EqualBitsAloneAndInAnyBatchChunkPageAndThreadCount) {
  Server alone({.num_threads = 1});
  std::vector<Request> requests = MixedRequests(alone.Text());
  const Sinks expected = RunEachAlone(&alone, requests);

  std::mt19937 random(1);
  for (const Setting& setting :
       {Setting{.num_threads = 2, .max_num_batched_tokens = 37, .page_size = 16},
        Setting{.num_threads = 3, .max_num_batched_tokens = 200, .page_size = 256},
        Setting{.num_threads = 1, .max_num_batched_tokens = 511}}) {
    SCOPED_TRACE(testing::Message()
                 << setting.num_threads << " threads, step of " << setting.max_num_batched_tokens
                 << ", page of " << setting.page_size);
    Server server(setting);
    std::vector<size_t> order(requests.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    Sinks sinks(requests.size());
    for (const size_t i : order) sinks[i] = server.Submit(requests[i]);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "prompt of " << requests[i].prompt.size());
      ASSERT_EQ(sinks[i]->Wait(), absl::OkStatus());
      ExpectEqualBits(*sinks[i], *expected[i], requests[i]);
      // The counters of a request do not depend on the other requests of its steps.
      const AttentionStats mine = sinks[i]->Stats().attention;
      EXPECT_EQ(mine.num_value_rows, expected[i]->Stats().attention.num_value_rows);
      EXPECT_EQ(mine.num_value_rows_read, expected[i]->Stats().attention.num_value_rows_read);
      EXPECT_GT(mine.num_value_rows_read, 0);
    }
    EXPECT_EQ(server.Stats().num_free_pages + server.Stats().num_cached_pages,
              server.Stats().num_pages);
  }
}

TEST(CheckpointEngine, EqualBitsWithOtherPages) {
  for (const DType kv_cache_dtype : {DType::kF32, DType::kI8, DType::kFx16}) {
    Server alone({.num_threads = 1, .kv_cache_dtype = kv_cache_dtype});
    Server other({.num_threads = 2,
                  .max_num_batched_tokens = 50,
                  .page_size = 32,
                  .kv_cache_dtype = kv_cache_dtype});
    const std::vector<Request> requests = MixedRequests(alone.Text());
    ExpectBits(RunEachAlone(&alone, requests), &other, requests);
  }
}

TEST(CheckpointEngine, EqualBitsWithPrefixCacheAndPreemption) {
  for (const DType kv_cache_dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
    Server alone({.num_threads = 1, .kv_cache_dtype = kv_cache_dtype});
    std::vector<Request> requests = MixedRequests(alone.Text());
    for (Request& request : requests) {  // only requests without top logprobs use cached scores
      if (request.Score()) request.Score()->num_logprobs = 0;
      if (request.Generate()) request.Generate()->max_tokens = 120;
    }
    Server server({.max_num_batched_tokens = 200,
                   .page_size = 32,
                   .kv_cache_dtype = kv_cache_dtype,
                   .enable_prefix_caching = true,
                   .num_pages = kMaxModelLen / 32});
    const Sinks expected = RunEachAlone(&alone, requests);
    for (int round = 0; round < 2; ++round) ExpectBits(expected, &server, requests);
    const EngineStats stats = server.Stats();
    EXPECT_GT(stats.num_prefix_cache_hits, 1000);
    EXPECT_GT(stats.num_preemptions, 0);
    EXPECT_EQ(stats.num_free_pages + stats.num_cached_pages, stats.num_pages);
  }
}

// Learned positions, none in a layer, ALiBi, sliding windows. The second round finds its prompts in
// the prefix cache.
TEST(CheckpointEngine, EqualBitsOfEveryKindOfPositions) {
  for (const char* name :
       {"gpt2", "smollm3", "bloom_heads", "mistral_window", "qwen2_window", "smollm3_window"}) {
    SCOPED_TRACE(name);
    const std::string directory = std::string("tests/models/hf/") + name;
    Setting setting{.checkpoint = directory.c_str(), .max_model_len = 96, .num_threads = 1};
    Server alone(setting);
    setting.num_threads = 2;
    setting.max_num_batched_tokens = 37;
    setting.page_size = 16;
    setting.enable_prefix_caching = true;
    Server server(setting);
    std::vector<Request> requests;
    for (const int length : {1, 15, 16, 17, 33, 48, 65, 80}) {
      Request request;
      for (int i = 0; i < length; ++i) request.prompt.push_back((i * i + i) % 61);
      request.params = GenerateParams{
          .sampling = {.temperature = length % 2 == 0 ? 0.0f : 0.9f, .seed = uint64_t(length)},
          .num_choices = length == 17 ? 3 : 1,
          .max_tokens = 16,
          .ignore_eos = true};
      requests.push_back(std::move(request));
    }
    const Sinks expected = RunEachAlone(&alone, requests);
    for (int round = 0; round < 2; ++round) ExpectBits(expected, &server, requests);
    EXPECT_GT(server.Stats().num_prefix_cache_hits, 100);
  }
}

TEST(CheckpointEngine, LearnedPositionsEndTheLength) {
  auto backend = MakeBackend({.name = "cpu", .num_threads = 1});
  ASSERT_TRUE(backend.ok());
  auto checkpoint = LoadCheckpoint("tests/models/hf/gpt2", backend->get(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto engine = Engine::Create(&*checkpoint, backend->get(), {.max_model_len = 97});
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("learned positions, n_positions = 96"),
            std::string_view::npos)
      << engine.status();
}

// Any tokens of the vocabulary: nearly all are wrong.
class RandomProposer : public Proposer {
 public:
  bool Propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& request : requests) {
      for (int i = 0; i < request.num_tokens; ++i) {
        request.sequence->draft.push_back(int32_t(random_() % 4096));
      }
    }
    return true;
  }

 private:
  std::mt19937 random_{3};
};

std::vector<Request> RequestsToDraftFor(const Tokenizer& tokenizer, int max_tokens) {
  std::vector<Request> requests = MixedRequests(tokenizer);
  for (Request& request : requests) {
    if (!request.Generate()) continue;
    request.Generate()->max_tokens = max_tokens;
    if (request.prompt.size() == 16) request.Generate()->stop_strings = {" the king"};
    if (request.prompt.size() % 5 == 0) request.Generate()->sampling.frequency_penalty = 0.3f;
  }
  return requests;
}

// With preemption and the prefix cache; the penalties of some requests count draft tokens.
TEST(CheckpointEngine, EqualBitsWithSpeculation) {
  int64_t num_preemptions = 0;
  for (const bool is_right : {true, false}) {
    const DType kv_cache_dtype = is_right ? DType::kF16 : DType::kI8;
    Server alone({.num_threads = 1, .kv_cache_dtype = kv_cache_dtype});
    const std::vector<Request> requests = RequestsToDraftFor(alone.Text(), 120);
    RandomProposer proposer;
    Server server({.max_num_batched_tokens = 200,
                   .page_size = 32,
                   .kv_cache_dtype = kv_cache_dtype,
                   .enable_prefix_caching = true,
                   .num_pages = kMaxModelLen / 32,
                   .speculates = true,
                   .proposer = is_right ? nullptr : &proposer});
    ExpectBits(RunEachAlone(&alone, requests), &server, requests);
    const EngineStats stats = server.Stats();
    num_preemptions += stats.num_preemptions;
    EXPECT_GT(stats.num_draft_tokens, 300);
    if (is_right) {
      EXPECT_GT(stats.num_accepted_tokens, 100);
    }
    EXPECT_EQ(stats.num_free_pages + stats.num_cached_pages, stats.num_pages);
  }
  EXPECT_GT(num_preemptions, 0);
}

// The int4 copy of the checkpoint drafts for it. The pages of both hold one long sequence, so
// sequences are preempted; two threads, and one in the expected run.
TEST(CheckpointEngine, EqualBitsWithADraftModel) {
  Server alone({.num_threads = 1});
  const std::vector<Request> requests = RequestsToDraftFor(alone.Text(), 60);
  Server server({.max_num_batched_tokens = 200,
                 .page_size = 32,
                 .enable_prefix_caching = true,
                 .num_pages = kMaxModelLen / 32,
                 .draft_dtype = DType::kI4});
  ExpectBits(RunEachAlone(&alone, requests), &server, requests);
  const EngineStats stats = server.Stats();
  EXPECT_GT(stats.num_draft_tokens, 200);
  EXPECT_GT(stats.num_accepted_tokens, stats.num_draft_tokens / 3);
  EXPECT_EQ(stats.num_free_pages + stats.num_cached_pages, stats.num_pages);
  EXPECT_EQ(stats.num_free_draft_model_pages, stats.num_draft_model_pages);
}

TEST(CheckpointEngine, PromptLogprobsAreScoresAndGreedyIsTheTop) {
  Server server({});
  const std::vector<int32_t> prompt = Prompt(server.Text(), 150);
  Request generate{.prompt = prompt};
  generate.params = GenerateParams{.sampling = {.temperature = 0},
                                   .max_tokens = 30,
                                   .num_logprobs = 3,
                                   .num_prompt_logprobs = 3};
  Request score{.prompt = {prompt[0]}};
  score.params =
      ScoreParams{.continuations = {{prompt.begin() + 1, prompt.end()}}, .num_logprobs = 3};
  const auto generated = server.RunAlone(generate);
  EXPECT_TRUE(generated->Prompt() == server.RunAlone(score)->Scores().at(0).tokens);

  std::vector<int32_t> ids;
  for (const TokenResult& token : generated->At(0).tokens) {
    EXPECT_EQ(token.logprob, token.top.at(0).logprob);
    ids.push_back(token.id);
  }
  Request again{.prompt = prompt};
  again.params = ScoreParams{.continuations = {ids}, .num_logprobs = 3};
  const ContinuationScore scored = server.RunAlone(again)->Scores().at(0);
  EXPECT_TRUE(scored.is_greedy);
  EXPECT_TRUE(scored.tokens == generated->At(0).tokens);
}

// A high temperature samples byte pieces and broken characters.
TEST(CheckpointEngine, StreamedTextEqualsTheTextDecodedAtOnce) {
  Server server({});
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Request request{.prompt = Prompt(server.Text(), 20)};
    request.params = GenerateParams{
        .sampling = {.temperature = 8, .seed = seed}, .max_tokens = 200, .ignore_eos = true};
    const RecordingSink::Choice choice = server.RunAlone(request)->At(0);
    StreamDecoder decoder(&server.Text(), /*continues_text=*/true);
    std::string whole;
    for (const TokenResult& token : choice.tokens) whole += decoder.Push(token.id);
    whole += decoder.Finish();
    EXPECT_EQ(choice.text, whole);
    EXPECT_EQ(FindInvalidUtf8(choice.text), std::nullopt);
    EXPECT_EQ(choice.tokens.size(), 200u);

    // A stop string from the middle of the text matches across token boundaries.
    const size_t from = whole.find(' ', whole.size() / 3);
    const size_t to = whole.find(' ', from + 5);
    ASSERT_TRUE(from != std::string::npos && to != std::string::npos);
    request.Generate()->stop_strings = {whole.substr(from, to - from)};
    const RecordingSink::Choice stopped = server.RunAlone(request)->At(0);
    EXPECT_EQ(stopped.finish, FinishReason::kStopString);
    EXPECT_EQ(stopped.text, whole.substr(0, whole.find(request.Generate()->stop_strings[0])));
  }
}

}  // namespace
}  // namespace lssar
