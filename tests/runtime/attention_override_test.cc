// Requests with another attention than the checkpoint's: the bits of a checkpoint whose config.json
// says the same, in one batch with other functions, and no shared pages.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
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
  explicit ChangedModel(const std::string& attention, int max_num_batched_tokens = 32,
                        int num_threads = 1) {
    nlohmann::json config = nlohmann::json::parse(std::ifstream(StrCat(kModel, "/config.json")));
    if (!attention.empty()) config["attention"] = nlohmann::json::parse(attention);
    directory_.Write("config.json", config.dump());
    std::filesystem::create_symlink(std::filesystem::absolute(StrCat(kModel, "/model.safetensors")),
                                    directory_.Path("model.safetensors"));
    backend_ = *MakeBackend({.name = "cpu", .num_threads = num_threads});
    auto loaded = LoadCheckpoint(directory_.Path(), backend_.get(),
                                 {.max_num_batched_tokens = max_num_batched_tokens});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    checkpoint_ = std::make_unique<Checkpoint>(*std::move(loaded));
    auto engine = Engine::CreateStepped(
        checkpoint_.get(), backend_.get(),
        {.max_model_len = 256, .max_num_batched_tokens = max_num_batched_tokens, .page_size = 16});
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
  request.attention = std::make_shared<AttentionOverride>(
      AttentionOverride{.layers = *layers, .name = DescribeAttention(*layers)});
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
      {.change = {.p_by_layer = {3, 15, 1.5}},
       .attention = R"([{"kind": "lssar", "p": 3}, {"kind": "lssar", "p": 15},
                        {"kind": "lssar", "p": 1.5}])"},
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

// By head and by number of keys: no config.json says the same.
std::vector<AttentionChange> PowerChanges() {
  return {{.p_by_head = {15, 3, 2.5}},
          {.p_by_head = {3, 3, 15, 1, 2, 15, 15, 15, 7}},
          {.p = 15, .p_by_length = {{.min_keys = 45, .power = {.p = 3}}}},
          {.p = 3, .p_by_length = {{.min_keys = 45, .power = {.p = 15}}}},
          {.kind = "softmax_r",
           .p_by_head = {1, 2, 3},
           .p_by_length = {{.min_keys = 20, .power = {.by_layer = {2, 4, 8}}},
                           {.min_keys = 77, .power = {.by_head = {5, 5, 1}}}}}};
}

// One request at a time in one chunk; all together in small chunks, on two threads, before and
// after their pages are cached.
TEST(AttentionOverrideTest, PowersByHeadAndLengthHaveTheSameBitsInAnyBatch) {
  ChangedModel mixed("", /*max_num_batched_tokens=*/19, /*num_threads=*/2);
  ChangedModel whole("", /*max_num_batched_tokens=*/256);
  std::vector<std::vector<std::shared_ptr<RecordingSink>>> rounds(2);
  for (auto& round : rounds) {
    for (const Request& request : EveryKind()) {
      for (const AttentionChange& change : PowerChanges()) {
        round.push_back(mixed.Submit(WithAttention(request, mixed.Config(), change)));
      }
    }
    mixed.RunAll();
  }
  EXPECT_GT(mixed.Stats().num_prefix_cache_hits, 0);
  size_t i = 0;
  for (const Request& request : EveryKind()) {
    for (const AttentionChange& change : PowerChanges()) {
      SCOPED_TRACE(i);
      Request alone = WithAttention(request, whole.Config(), change);
      alone.use_prefix_cache = false;
      const auto expected = whole.Submit(alone);
      whole.RunAll();
      ASSERT_EQ(expected->Status(), absl::OkStatus());
      for (const auto& round : rounds) {
        ASSERT_EQ(round[i]->Status(), absl::OkStatus());
        ExpectEqualBits(*round[i], *expected, alone);
      }
      ++i;
    }
  }
}

// Weights of query tokens with 40, 44, 45 and 71 keys, in all layers and heads.
std::map<std::array<int, 3>, RowWeights> WeightsAfter(ChangedModel& model,
                                                      const AttentionChange& change) {
  Request capture{.prompt = Ids(80, 1)};
  capture.params = CaptureParams{.layers = {0, 1, 2}, .heads = {0, 1, 2}, .rows = {39, 43, 44, 70}};
  const auto sink = model.Submit(WithAttention(capture, model.Config(), change));
  model.RunAll();
  EXPECT_EQ(sink->Status(), absl::OkStatus());
  EXPECT_EQ(sink->Weights().size(), size_t{4 * 3 * 3});
  return sink->Weights();
}

// Rows of fewer keys than the step have the bits of the first power in every layer. The others have
// those of the second power where K is the same: in layer 0.
TEST(AttentionOverrideTest, AStepChangesTheRowsFromItOn) {
  ChangedModel own("");
  const auto step =
      WeightsAfter(own, {.p = 5, .p_by_length = {{.min_keys = 45, .power = {.p = 2}}}});
  const auto before = WeightsAfter(own, {.p = 5}), after = WeightsAfter(own, {.p = 2});
  int num_compared = 0, num_different = 0;
  for (const auto& [at, weights] : step) {
    const bool is_before = weights.row + 1 < 45;
    if (!is_before && weights.layer > 0) continue;
    EXPECT_TRUE(weights == (is_before ? before : after).at(at))
        << "layer " << weights.layer << ", head " << weights.head << ", row " << weights.row;
    ++num_compared;
    num_different += before.at(at) == after.at(at) ? 0 : 1;
  }
  EXPECT_EQ(num_compared, 2 * 9 + 2 * 3);
  EXPECT_GT(num_different, num_compared / 2);
}

// Layer 0 reads what no power has changed: each of its heads is that of its own p.
TEST(AttentionOverrideTest, AHeadIsThatOfItsOwnPower) {
  ChangedModel own("");
  const std::vector<double> powers = {4, 15, 2.5};
  const auto by_head = WeightsAfter(own, {.p_by_head = powers});
  int num_different = 0;
  for (int head = 0; head < 3; ++head) {
    const auto uniform = WeightsAfter(own, {.p = powers[size_t(head)]});
    for (const auto& [at, weights] : by_head) {
      if (weights.layer > 0) continue;
      const bool is_same = weights == uniform.at(at);
      EXPECT_TRUE(is_same || weights.head != head) << "head " << head << ", row " << weights.row;
      num_different += is_same ? 0 : 1;
    }
  }
  EXPECT_GT(num_different, 12);  // of 24
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
  for (const AttentionChange& change : PowerChanges()) {
    const Change named{.change = change, .attention = "none says the same"};
    EXPECT_EQ(cached_tokens(named), 0);
    EXPECT_EQ(cached_tokens(named), 96);
  }
}

}  // namespace
}  // namespace lssar
