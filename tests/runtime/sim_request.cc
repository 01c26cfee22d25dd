#include "tests/runtime/sim_request.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/str_cat.h"
#include "kernels/reference/sample.h"
#include "models/attention_override.h"
#include "runtime/sequence.h"
#include "runtime/token_counts.h"
#include "tests/support/fake_model.h"

namespace lssar {
namespace {

// A token of the text of `family`. Ids 0 to 2 are reserved for tokens that end texts.
int32_t IdAt(uint64_t family, int position, int vocab_size) {
  return 3 + int32_t(FakeHash(family, uint64_t(position)) % uint64_t(vocab_size - 3));
}

std::vector<int32_t> SimText(SimRandom* random, int num_tokens, int vocab_size) {
  std::vector<int32_t> ids;
  const uint64_t family = (*random)() % 3;
  const int num_shared = OneIn(random, 4) ? num_tokens : Between(random, 0, num_tokens);
  const uint64_t own = (*random)();
  for (int i = 0; i < num_tokens; ++i) {
    ids.push_back(IdAt(i < num_shared ? family : own, i, vocab_size));
  }
  return ids;
}

// The state of the fake model, token by token.
class History {
 public:
  History(uint64_t first_hash, std::span<const int32_t> ids) : hash_(first_hash) {
    for (const int32_t id : ids) Add(id);
  }
  void Add(int32_t id) { hash_ = FakeHash(hash_, uint64_t(uint32_t(id))); }
  uint64_t Hash() const { return hash_; }
  std::vector<float> Logits(int vocab_size) const {
    std::vector<float> logits;
    for (int id = 0; id < vocab_size; ++id) {
      logits.push_back(float(8 * (double(FakeHash(hash_, uint64_t(id)) >> 11) * 0x1p-53) - 4));
    }
    return logits;
  }

 private:
  uint64_t hash_;
};

SampleResult Sampled(const std::vector<float>& logits, const SampleRequest& row) {
  SampleResult sampled;
  ReferenceSample({.logits = logits.data(),
                   .vocab = int(logits.size()),
                   .rows = {&row, 1},
                   .out = {&sampled, 1}});
  return sampled;
}

SampleResult Scored(const std::vector<float>& logits, int32_t id) {
  return Sampled(logits, {.target = id, .counts = {}, .num_logprobs = 0});
}

void Shape(SimRandom* random, int max_choices, GenerateParams* params) {
  SamplingParams& sampling = params->sampling;
  sampling.seed = (*random)() % 4;
  if (OneIn(random, 4)) sampling.temperature = 0;
  if (OneIn(random, 8)) sampling.frequency_penalty = 0.5f;
  if (OneIn(random, 6)) params->num_choices = Between(random, 1, max_choices);
  params->min_tokens = OneIn(random, 4) ? Between(random, 0, params->max_tokens) : 0;
  params->ignore_eos = !OneIn(random, 4);
  if (OneIn(random, 4)) params->stop_ids = {2};
  if (OneIn(random, 10)) params->num_prompt_logprobs = Between(random, 0, 1);
  params->num_logprobs = Between(random, -1, 0);
  if (OneIn(random, 4)) params->speculative_tokens = Between(random, 0, 4);
}

}  // namespace

Request MakeSimRequest(SimRandom* random, const ModelConfig& config, int max_model_len,
                       int max_choices) {
  const int vocab_size = config.vocab_size;
  Request request;
  const int num_tokens = Between(random, 2, OneIn(random, 2) ? max_model_len : max_model_len / 3);
  // Long answers to short prompts cause KV cache pressure.
  const int longest_prompt = OneIn(random, 2) ? std::min(12, num_tokens - 1) : num_tokens - 1;
  const int num_prompt = Between(random, 1, longest_prompt);
  std::vector<int32_t> text = SimText(random, num_tokens, vocab_size);
  request.prompt.assign(text.begin(), text.begin() + num_prompt);
  request.priority = OneIn(random, 3) ? Between(random, -2, 2) : 0;
  request.use_prefix_cache = !OneIn(random, 8);
  if (OneIn(random, 8)) request.cache_salt = "salt";
  if (OneIn(random, 4)) {
    const AttentionSpec spec{.p = OneIn(random, 2) ? 3.0 : 5.0};
    request.attention = std::make_shared<AttentionOverride>(
        AttentionOverride{.layers = {spec}, .name = DescribeAttention({&spec, 1})});
  }
  if (OneIn(random, 12)) {
    request.params = CaptureParams{.layers = {0}, .heads = {2, 7}};
    for (int row = 0; row < num_prompt; ++row) {
      if (row + 1 == num_prompt || OneIn(random, 4)) request.Capture()->rows.push_back(row);
    }
    return request;
  }
  if (!OneIn(random, 4)) {
    request.params = GenerateParams{.max_tokens = num_tokens - num_prompt};
    Shape(random, max_choices, request.Generate());
    return request;
  }
  request.params = ScoreParams{};
  request.Score()->continuations.emplace_back(text.begin() + num_prompt, text.end());
  for (int i = Between(random, 0, 2); i > 0; --i) {
    const std::vector<int32_t> other = SimText(random, num_tokens, vocab_size);
    const int length = Between(random, 1, num_tokens - num_prompt);
    request.Score()->continuations.emplace_back(other.end() - length, other.end());
  }
  return request;
}

SimSink::SimSink(const Request& request, const ModelConfig& config)
    : request_(request), config_(config) {
  const KvLayout layout{.page_size = 16};
  first_hash_ =
      FakeModel::FirstHash(RopeBase(config, RequiredResourcesOf(request, layout).num_read_tokens),
                           request.attention ? &request.attention->layers : nullptr);
  if (request.Generate()) choices_.resize(size_t(request.Generate()->num_choices));
}

void SimSink::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

void SimSink::OnAdmitted(const RequestStats&) {
  if (std::exchange(is_admitted_, true)) Fail("admitted twice");
}

void SimSink::OnResult(EngineResult result) {
  if (!is_admitted_ || is_done_) Fail("a result out of order");
  std::visit([this](auto& kind) { Record(std::move(kind)); }, result);
}

void SimSink::Record(PromptDelta delta) {
  if (delta.first != int(prompt_.size()) + 1) Fail("prompt log-probabilities with a gap");
  for (TokenResult& token : delta.tokens) prompt_.push_back(std::move(token));
}

void SimSink::Record(const GenerateDelta& delta) {
  Choice& choice = choices_.at(size_t(delta.choice));
  if (choice.finish) Fail("tokens after the end of a choice");
  for (const TokenResult& token : delta.tokens) choice.ids.push_back(token.id);
  choice.finish = delta.finish;
}

void SimSink::Record(ContinuationScore score) {
  if (score.index != int(scores_.size())) Fail("a score is missing");
  scores_.push_back(std::move(score));
}

void SimSink::Record(std::vector<RowWeights> rows) {
  for (RowWeights& row : rows) weights_.push_back(std::move(row));
}

void SimSink::OnDone(const absl::Status& status, const RequestStats& stats) {
  if (is_done_) Fail("done twice");
  status_ = status;
  stats_ = stats;
  CheckPrompt();
  for (size_t i = 0; i < choices_.size(); ++i) CheckChoice(int(i));
  for (size_t i = 0; i < scores_.size(); ++i) CheckScore(int(i), scores_[i]);
  CheckWeights();
  if (request_.Score() && status.ok() && scores_.size() < request_.Score()->continuations.size()) {
    Fail("OK without all scores");
  }
  is_done_ = true;
}

void SimSink::CheckChoice(int idx) {
  const GenerateParams& params = *request_.Generate();
  const Choice& choice = choices_[size_t(idx)];
  History history(first_hash_, request_.prompt);
  TokenCounts counts;
  counts.AddPrompt(request_.prompt);
  std::optional<FinishReason> finish;
  SamplingParams early = params.sampling;
  early.banned_ids = params.stop_ids;
  if (!params.ignore_eos) early.banned_ids.push_back(FakeModel::kEosId);
  int num_generated = 0;
  for (const int32_t id : choice.ids) {
    const int32_t expected =
        Sampled(history.Logits(config_.vocab_size),
                {.params = num_generated < params.min_tokens ? &early : &params.sampling,
                 .counts = counts.Counts(),
                 .choice = idx,
                 .position = int(request_.prompt.size()) + num_generated})
            .id;
    if (id != expected || finish) return Fail(StrCat("choice ", idx, " has another text"));
    if (num_generated >= params.min_tokens) {
      if (id == FakeModel::kEosId && !params.ignore_eos) finish = FinishReason::kEos;
      if (std::ranges::count(params.stop_ids, id) > 0) finish = FinishReason::kStopId;
    }
    if (++num_generated == params.max_tokens && !finish) finish = FinishReason::kLength;
    history.Add(id);
    counts.AddOutput(id);
  }
  if (finish != choice.finish) Fail(StrCat("choice ", idx, " ends elsewhere"));
  if (status_.ok() && !choice.finish) Fail("OK without the end of a choice");
}

void SimSink::CheckPrompt() {
  const bool is_wanted = request_.Generate() && request_.Generate()->num_prompt_logprobs >= 0;
  if (!is_wanted && !prompt_.empty()) Fail("prompt log-probabilities that were not requested");
  if (is_wanted && status_.ok() && prompt_.size() + 1 != request_.prompt.size()) {
    Fail("OK without the prompt's log-probabilities");
  }
  History history(first_hash_, {});
  for (size_t i = 0; i < prompt_.size(); ++i) {
    history.Add(request_.prompt[i]);
    const int32_t id = request_.prompt[i + 1];
    if (prompt_[i].id != id ||
        prompt_[i].logprob != Scored(history.Logits(config_.vocab_size), id).logprob) {
      return Fail("the prompt has other log-probabilities");
    }
  }
}

void SimSink::CheckWeights() {
  if (!request_.Capture()) {
    if (!weights_.empty()) Fail("weights that were not requested");
    return;
  }
  struct Compare : WeightsSink {
    void OnWeights(int, int head, int position, const AttentionRow& row) override {
      const std::vector<double>& weights = row.weights;
      is_same = given->head == head && given->row == position;
      for (const auto& [key, weight] : given->keys) {
        is_same = is_same && weight == float(weights[size_t(key)]);
      }
      is_same = is_same &&
                std::ssize(weights) - std::ranges::count(weights, 0.0) == std::ssize(given->keys) &&
                row.num_zero == given->num_zero;
    }
    const RowWeights* given = nullptr;
    bool is_same = false;
  } compare;
  const std::vector<int32_t>& rows = request_.Capture()->rows;
  const std::vector<int32_t>& heads = request_.Capture()->heads;
  if (weights_.size() > rows.size() * heads.size()) return Fail("weights twice");
  if (status_.ok() && weights_.size() < rows.size() * heads.size()) Fail("OK without all weights");
  for (size_t i = 0; i < weights_.size(); ++i) {
    const int32_t row = rows[i / heads.size()];
    const std::span prompt = request_.prompt;
    const History history(first_hash_, prompt.first(size_t(row) + 1));
    compare.given = &weights_[i];
    FakeModel::GiveWeights({.layers = request_.Capture()->layers,
                            .heads = std::span(heads).subspan(i % heads.size(), 1),
                            .sink = &compare},
                           history.Hash(), row);
    if (!compare.is_same) return Fail("other weights");
  }
}

void SimSink::CheckScore(int index, const ContinuationScore& score) {
  const std::vector<int32_t>& ids = request_.Score()->continuations.at(size_t(index));
  History history(first_hash_, request_.prompt);
  double sum = 0;
  bool is_greedy = true;
  if (score.tokens.size() != ids.size()) return Fail("a score of another length");
  for (size_t i = 0; i < ids.size(); ++i) {
    const SampleResult row = Scored(history.Logits(config_.vocab_size), ids[i]);
    if (score.tokens[i].id != ids[i] || score.tokens[i].logprob != row.logprob) {
      return Fail("a score of other log-probabilities");
    }
    sum += double(row.logprob);
    is_greedy &= row.is_best;
    history.Add(ids[i]);
  }
  if (score.logprob != sum || score.is_greedy != is_greedy) Fail("a score of another sum");
}

}  // namespace lssar
