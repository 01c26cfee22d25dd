// Scoring: the log-probability of each continuation of one context.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/sample_math.h"
#include "runtime/limits.h"
#include "runtime/sequence.h"
#include "runtime/sequence_task.h"

namespace lssar {
namespace {

// ln(sum(e^x)) with the bits that the backends of cpu and cuda have for log-probabilities.
double LogSumOf(std::span<const float> logits) {
  const float max = *std::ranges::max_element(logits);
  uint64_t sum = 0;
  for (const float logit : logits) sum += WeightOf(logit, max, kRateOfLogprobs);
  return double{max} + std::log(std::ldexp(double(sum), -kWeightBits));
}

// Shared by the sequences of one item: assigns continuations to sequences and orders the scores.
class ScoreItem {
 public:
  // `params` must outlive the item.
  ScoreItem(const ScoreParams* params, int num_context_tokens)
      : params_(params),
        num_context_tokens_(num_context_tokens),
        finished_(params->continuations.size()) {}

  int NumContextTokens() const { return num_context_tokens_; }
  const ScoreParams& Params() const { return *params_; }
  std::span<const int32_t> Continuation(int index) const {
    return params_->continuations[size_t(index)];
  }
  // Assigns a continuation to a further sequence. Requires  one is left
  int AssignFirst() {
    LSSAR_CHECK(HasNext());
    ++num_sequences_;
    return num_assigned_++;
  }
  // Assigns the next one to a sequence that has finished one. -1: the sequence ends, since none is
  // left, or because others wait and another sequence goes on.
  int AssignNext(bool others_wait) {
    if (HasNext() && !(others_wait && num_sequences_ > 1)) return num_assigned_++;
    --num_sequences_;
    return -1;
  }
  // To be sent before the score of its continuation.
  void AddLogprobs(LogprobBlock block) { logprobs_.push_back(std::move(block)); }
  void Finish(ContinuationScore score) { finished_[size_t(score.index)] = std::move(score); }
  // Sends finished scores in order of their index, so a score may wait for an earlier one.
  void Publish(OutputSink* sink) {
    for (LogprobBlock& block : logprobs_) {
      if (!params_->indices.empty()) block.index = params_->indices[size_t(block.index)];
      sink->OnResult(std::move(block));
    }
    logprobs_.clear();
    while (num_published_ < num_assigned_ && finished_[size_t(num_published_)]) {
      ContinuationScore score = *std::exchange(finished_[size_t(num_published_++)], std::nullopt);
      if (!params_->indices.empty()) score.index = params_->indices[size_t(score.index)];
      sink->OnResult(std::move(score));
    }
  }

 private:
  bool HasNext() const { return num_assigned_ < int(params_->continuations.size()); }

  const ScoreParams* params_;
  const int num_context_tokens_;
  int num_sequences_ = 0;  // that work on it
  int num_assigned_ = 0;
  int num_published_ = 0;
  std::vector<std::optional<ContinuationScore>> finished_;  // by index, until published
  std::vector<LogprobBlock> logprobs_;                      // of the step
};

// Scores one continuation after another until none is left, or until others wait and a further
// sequence of the item goes on. For each further one the sequence goes
// back to the context's last token, whose logits give the first token's log-probability. The
// continuation's tokens follow at the same positions as if it were scored alone, so the bits are
// the same, whichever sequence of the item scores it.
class ScoreTask final : public SequenceTask {
 public:
  // Requires  the item has a continuation left
  ScoreTask(std::shared_ptr<ScoreItem> item, int vocab_size)
      : item_(std::move(item)), vocab_size_(vocab_size), current_(item_->AssignFirst()) {}

  // Appends the continuation to the context. K and V of its last token are never needed.
  void AppendContinuation(Sequence* sequence) const {
    const std::span<const int32_t> ids = Continuation();
    sequence->tokens.insert(sequence->tokens.end(), ids.begin(), ids.end() - 1);
  }

  bool NeedsLogits(const Sequence&, int position) const override {
    return position + 1 >= NumContextTokens() + NumScored();
  }

  int FirstLogitsPosition(const Sequence&) const override {
    return NumContextTokens() + NumScored() - 1;
  }

  void OnCachedScores(int first, std::span<const TokenScore> scores) override {
    // The cache does not store the N best and other ids.
    if (Params().num_logprobs > 0 || WantsLogits()) return;
    for (size_t i = 0; i < scores.size(); ++i) {
      const int ahead = first + int(i) - NumContextTokens() - NumScored();
      if (ahead < 0) continue;
      if (ahead > 0 || !scores[i].is_known) return;
      AddToken({.id = Continuation()[size_t(NumScored())], .logprob = scores[i].logprob},
               scores[i]);
    }
  }

  void GetScores(int first, std::span<TokenScore> scores) const override {
    for (size_t i = 0; i < scores.size(); ++i) {
      const int idx = first + int(i) - NumContextTokens();
      if (idx >= 0 && idx < NumScored()) scores[i] = scores_[size_t(idx)];
    }
  }

  bool IsStreaming() const override { return false; }
  bool MayMatchAfterFork() const override { return true; }

  SampleRequest MakeSampleRequest(const Sequence&, int position) override {
    return {.target = Continuation()[size_t(position + 1 - NumContextTokens())],
            .counts = {},
            .num_logprobs = Params().num_logprobs};
  }

  bool WantsLogits() const override {
    return Params().full_distribution || !Params().logprob_ids.empty();
  }
  void OnLogits(int position, std::span<const float> logits) override {
    const double log_sum = LogSumOf(logits);
    const auto append = [&](float logit) {
      logprobs_.values.push_back(float(double{logit} - log_sum));
    };
    if (logprobs_.values.empty()) logprobs_.first = position + 1 - NumContextTokens();
    for (const int32_t id : Params().logprob_ids) append(logits[size_t(id)]);
    if (Params().full_distribution) std::ranges::for_each(logits, append);
    logprobs_.size = NumValues();
  }
  int MaxTokensInStep(const Sequence& sequence) const override {
    const int num_pending = sequence.NumPendingTokens();
    if (!WantsLogits()) return num_pending;
    const int64_t most = std::max(limits::kMaxSequenceFloats / NumValues(), int64_t{1});
    return int(std::min(int64_t{num_pending}, NumBeforeLogits(sequence) + most));
  }
  int64_t MaxFloatsInStep(const Sequence& sequence) const override {
    if (!WantsLogits()) return 0;
    return NumValues() * (MaxTokensInStep(sequence) - NumBeforeLogits(sequence));
  }

  void OnSampleResult(int, SampleResult* result) override {
    const TokenScore score = {
        .logprob = result->logprob, .is_known = true, .is_greedy = result->is_best};
    AddToken(MakeTokenResult(result), score);
  }

  void SetOthersWait(bool others_wait) override { others_wait_ = others_wait; }

  void Advance(Sequence* sequence) override {
    if (!logprobs_.values.empty()) {
      logprobs_.index = current_;
      item_->AddLogprobs(std::exchange(logprobs_, {}));
    }
    if (NumScored() < int(Continuation().size())) return;  // continues in the next step
    score_.index = current_;
    item_->Finish(std::exchange(score_, {}));
    scores_.clear();
    current_ = item_->AssignNext(others_wait_);
    if (IsDone()) return;
    sequence->tokens.resize(size_t(NumContextTokens()));
    sequence->num_computed_tokens = NumContextTokens() - 1;
    AppendContinuation(sequence);
  }

  void Publish(OutputSink* sink) override { item_->Publish(sink); }
  bool IsDone() const override { return current_ < 0; }
  int NumGenerated() const override { return 0; }

 private:
  std::span<const int32_t> Continuation() const { return item_->Continuation(current_); }
  int NumContextTokens() const { return item_->NumContextTokens(); }
  int NumScored() const { return int(score_.tokens.size()); }
  const ScoreParams& Params() const { return item_->Params(); }
  int NumValues() const {
    return Params().full_distribution ? vocab_size_ : int(Params().logprob_ids.size());
  }
  // Pending tokens before the first one whose logits are needed.
  int64_t NumBeforeLogits(const Sequence& sequence) const {
    return std::clamp(FirstLogitsPosition(sequence) - sequence.num_computed_tokens, 0,
                      sequence.NumPendingTokens());
  }

  void AddToken(TokenResult token, const TokenScore& score) {
    score_.is_greedy &= score.is_greedy;
    score_.logprob += double(score.logprob);
    score_.tokens.push_back(std::move(token));
    scores_.push_back(score);
  }

  const std::shared_ptr<ScoreItem> item_;
  const int vocab_size_;
  int current_;  // the continuation being scored; -1: the sequence has ended
  bool others_wait_ = false;
  ContinuationScore score_;         // of the current continuation, as far as it is computed
  std::vector<TokenScore> scores_;  // of its tokens
  LogprobBlock logprobs_;           // of the step
};

}  // namespace

void AddScoreTasks(const Checkpoint& checkpoint, SequenceGroup* group) {
  const auto item =
      std::make_shared<ScoreItem>(group->request.Score(), int(group->request.prompt.size()));
  for (Sequence& sequence : group->sequences) {
    auto task = std::make_unique<ScoreTask>(item, checkpoint.config.vocab_size);
    task->AppendContinuation(&sequence);
    sequence.task = std::move(task);
  }
}

}  // namespace lssar
