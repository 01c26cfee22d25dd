// Requests with another attention than the checkpoint's: the bits of a checkpoint whose config.json
// says the same, in one batch with other functions, and no shared pages.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "kernels/backend.h"
#include "models/attention_override.h"
#include "models/checkpoint.h"
#include "runtime/engine.h"
#include "tests/runtime/stepped_engine.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

constexpr const char* kModel = "tests/golden/gpt_lssar";  // lssar, p 15

// The golden model whose config.json has another attention object.
class ChangedModel {
 public:
  // `attention`: as JSON; empty: its own.
  explicit ChangedModel(const std::string& attention) {
    nlohmann::json config = nlohmann::json::parse(std::ifstream(StrCat(kModel, "/config.json")));
    if (!attention.empty()) config["attention"] = nlohmann::json::parse(attention);
    directory_.Write("config.json", config.dump());
    std::filesystem::create_symlink(std::filesystem::absolute(StrCat(kModel, "/model.safetensors")),
                                    directory_.Path("model.safetensors"));
    backend_ = *MakeBackend({.name = "cpu", .num_threads = 1});
    auto loaded = LoadCheckpoint(directory_.Path(), backend_.get(), {.max_num_batched_tokens = 32});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    checkpoint_ = std::make_unique<Checkpoint>(*std::move(loaded));
    auto engine = Engine::CreateStepped(
        checkpoint_.get(), backend_.get(),
        {.max_model_len = 256, .max_num_batched_tokens = 32, .page_size = 16});
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  std::shared_ptr<RecordingSink> Submit(const Request& request) {
    auto sink = std::make_shared<RecordingSink>();
    EXPECT_TRUE(engine_->Submit(request, sink).ok());
    return sink;
  }
  void RunAll() {
    const auto is_open = [this] {
      return engine_->Stats().num_running > 0 || engine_->Stats().num_waiting > 0;
    };
    while (is_open()) ASSERT_EQ(engine_->Step(), absl::OkStatus());
  }
  const ModelConfig& Config() const { return checkpoint_->config; }
  EngineStats Stats() const { return engine_->Stats(); }

 private:
  const ScratchDirectory directory_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
};

Request WithAttention(Request request, const ModelConfig& config, const AttentionChange& change) {
  auto layers = ChangeAttention(config, change);
  EXPECT_TRUE(layers.ok()) << layers.status();
  request.attention = AttentionOverride{.layers = *layers, .name = DescribeAttention(*layers)};
  return request;
}

// A request of each kind, with the same long beginning.
std::vector<Request> EveryKind() {
  Request generate{.prompt = Ids(70, 1)};
  generate.params = GenerateParams{.num_choices = 2, .max_tokens = 12, .num_logprobs = 2};
  generate.Generate()->sampling.seed = 5;
  generate.Generate()->ignore_eos = true;
  Request score{.prompt = Ids(60, 1)};
  score.params = ScoreParams{.continuations = {Ids(40, 2), Ids(9, 3)}, .num_logprobs = 1};
  Request capture{.prompt = Ids(80, 1)};
  capture.params = CaptureParams{.layers = {0, 2}, .heads = {1, 2}, .rows = {3, 41, 79}};
  Request embed{.prompt = Ids(50, 1)};
  embed.params = EmbedParams{.pooling = Pooling::kMean};
  return {generate, score, capture, embed};
}

struct Change {
  AttentionChange change;  // nothing set: the checkpoint's own attention
  std::string attention;   // the same in config.json
};

const std::vector<Change>& Changes() {
  static const auto& changes = *new std::vector<Change>{
      {.change = {}, .attention = ""},
      {.change = {.p = 3}, .attention = R"({"kind": "lssar", "p": 3})"},
      {.change = {.p = 100}, .attention = R"({"kind": "lssar", "p": 100})"},
      {.change = {.kind = "softmax"}, .attention = R"({"kind": "softmax"})"},
      {.change = {.kind = "lssa"}, .attention = R"({"kind": "lssa"})"},
      {.change = {.p = 5, .kind = "softmax_r"}, .attention = R"({"kind": "softmax_r", "p": 5})"},
      {.change = {.kind = "sigmoid"}, .attention = R"({"kind": "sigmoid"})"},
      {.change = {.kind = "phi", .phi = "gelu"}, .attention = R"({"kind": "phi", "phi": "gelu"})"},
  };
  return changes;
}

Request Changed(const Request& request, const ModelConfig& config, const Change& change) {
  return change.attention.empty() ? request : WithAttention(request, config, change.change);
}

// All functions and kinds of requests run at the same time, twice: the second time pages of the
// first are in the prefix cache.
TEST(AttentionOverrideTest, HasTheBitsOfACheckpointWithThatConfig) {
  ChangedModel own("");
  std::vector<std::vector<std::shared_ptr<RecordingSink>>> mixed;  // [round][change, request]
  for (int round = 0; round < 2; ++round) {
    mixed.emplace_back();
    for (const Request& request : EveryKind()) {
      for (const Change& change : Changes()) {
        mixed.back().push_back(own.Submit(Changed(request, own.Config(), change)));
      }
    }
    own.RunAll();
  }
  EXPECT_GT(own.Stats().num_prefix_cache_hits, 0);

  for (size_t i = 0; i < Changes().size(); ++i) {
    SCOPED_TRACE(Changes()[i].attention);
    ChangedModel other(Changes()[i].attention);
    const std::vector<Request> requests = EveryKind();
    for (size_t k = 0; k < requests.size(); ++k) {
      SCOPED_TRACE(k);
      const auto alone = other.Submit(requests[k]);
      other.RunAll();
      ASSERT_EQ(alone->Status(), absl::OkStatus());
      for (const auto& round : mixed) {
        const auto& sink = round[k * Changes().size() + i];
        ASSERT_EQ(sink->Status(), absl::OkStatus());
        ExpectEqualBits(*sink, *alone, requests[k]);
      }
    }
  }
}

TEST(AttentionOverrideTest, FunctionsDiffer) {
  ChangedModel own("");
  const Request score = EveryKind()[1];
  std::vector<double> logprobs;
  for (const Change& change : Changes()) {
    const auto sink = own.Submit(Changed(score, own.Config(), change));
    own.RunAll();
    for (const double other : logprobs) EXPECT_NE(sink->Scores()[0].logprob, other);
    logprobs.push_back(sink->Scores()[0].logprob);
  }
}

TEST(AttentionOverrideTest, PagesAreSharedWithinAFunctionOnly) {
  ChangedModel own("");
  Request request{.prompt = Ids(100, 1)};
  request.params = GenerateParams{.max_tokens = 1};
  const auto cached_tokens = [&](const Change& change) {
    const auto sink = own.Submit(Changed(request, own.Config(), change));
    own.RunAll();
    return sink->Stats().num_cached_tokens;
  };
  for (const Change& change : Changes()) EXPECT_EQ(cached_tokens(change), 0);
  for (const Change& change : Changes()) EXPECT_EQ(cached_tokens(change), 96);
}

}  // namespace
}  // namespace lssar
