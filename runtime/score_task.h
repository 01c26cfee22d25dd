// A score item: one context, and the log-probability of each continuation after it.
#ifndef LSSAR_RUNTIME_SCORE_TASK_H_
#define LSSAR_RUNTIME_SCORE_TASK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/sequence_task.h"

namespace lssar {

// What the sequences of one item share: who scores which continuation, and the order of the scores.
class ScoreItem {
 public:
  // `params` must outlive the item.
  ScoreItem(const ScoreParams* params, int num_context_tokens)
      : params_(params),
        num_context_tokens_(num_context_tokens),
        finished_(params->continuations.size()) {}

  int NumContextTokens() const { return num_context_tokens_; }
  int NumLogprobs() const { return params_->num_logprobs; }
  std::span<const int32_t> Continuation(int index) const {
    return params_->continuations[size_t(index)];
  }
  // The first that nobody has taken; -1: none is left.
  int TakeNext();
  void Finish(ContinuationScore score);
  // Gives the sink those whose turn it is: in rising order, so that one may wait for another.
  void Publish(OutputSink* sink);

 private:
  const ScoreParams* params_;
  const int num_context_tokens_;
  int num_taken_ = 0;
  int num_published_ = 0;
  std::vector<std::optional<ContinuationScore>> finished_;  // by index, until they are published
};

// One continuation after another, until none is left. For each further one the sequence is rewound
// to the context's last token, whose row gives the first token's log-probability, and the
// continuation's rows follow it: the same rows at the same positions as alone, so the same bits,
// whichever sequence of the item scores it.
class ScoreTask : public SequenceTask {
 public:
  // Requires  the item has a continuation left
  explicit ScoreTask(std::shared_ptr<ScoreItem> item);

  // Appends to the context what of the first continuation has to be computed.
  void Start(Sequence* sequence) const;

  bool WantsLogits(const Sequence& sequence, int position) const override;
  int FirstWantedRow(const Sequence& sequence) const override;
  void TakeCached(int first, std::span<const TokenScore> scores) override;
  void ReadScores(int first, std::span<TokenScore> scores) const override;
  bool Streams() const override { return false; }
  SampleRequest Ask(const Sequence& sequence, int position) const override;
  void Take(int position, SampleResult* row) override;
  void Advance(Sequence* sequence) override;
  void Publish(OutputSink* sink) override;
  bool IsDone() const override { return current_ < 0; }
  int NumGenerated() const override { return 0; }

 private:
  std::span<const int32_t> Current() const { return item_->Continuation(current_); }
  int NumContextTokens() const { return item_->NumContextTokens(); }
  int NumTaken() const { return int(score_.tokens.size()); }
  void Add(TokenResult token);

  const std::shared_ptr<ScoreItem> item_;
  int current_;                     // the continuation being scored; -1: none is left
  ContinuationScore score_;         // of it, as far as its rows are computed
  std::vector<TokenScore> scores_;  // of its tokens
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SCORE_TASK_H_
