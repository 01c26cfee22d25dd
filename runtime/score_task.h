// A score item: one context, and the log-probability of each continuation after it.
#ifndef LSSAR_RUNTIME_SCORE_TASK_H_
#define LSSAR_RUNTIME_SCORE_TASK_H_

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/sequence_task.h"

namespace lssar {

// The context is computed once. For each further continuation the sequence is rewound to the
// context's last token, whose row gives the first token's log-probability, and the continuation's
// rows follow it: the same rows at the same positions as alone, so the same bits.
class ScoreTask : public SequenceTask {
 public:
  // `params` must outlive the task.
  ScoreTask(const ScoreParams* params, int num_context_tokens);

  // Appends to the context what of the first continuation has to be computed.
  void Start(Sequence* sequence) const;

  bool WantsLogits(const Sequence& sequence, int position) const override;
  int FirstWantedRow(const Sequence& sequence) const override;
  void TakeCached(int first, std::span<const TokenScore> scores) override;
  void ReadScores(int first, std::span<TokenScore> scores) const override;
  bool Streams() const override { return false; }
  absl::StatusOr<RowTarget> Choose(const Sequence& sequence, int position,
                                   std::span<const float> logits, Sampler* sampler) override;
  void Take(int position, const RowTarget& target, RowLogprobs* logprobs) override;
  void Advance(Sequence* sequence) override;
  void Publish(TokenSink* sink) override;
  bool IsDone() const override { return next_ == int(params_->continuations.size()); }
  int NumGenerated() const override { return 0; }

 private:
  std::span<const int32_t> Current() const { return params_->continuations[size_t(next_)]; }
  int NumTaken() const { return int(score_.tokens.size()); }
  void Add(TokenResult token);

  const ScoreParams* params_;
  const int num_context_tokens_;
  int next_ = 0;                               // the continuation being scored
  ContinuationScore score_;                    // of it, as far as its rows are computed
  std::vector<TokenScore> scores_;             // of its tokens
  std::optional<ContinuationScore> finished_;  // of the step
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SCORE_TASK_H_
