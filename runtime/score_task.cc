#include "runtime/score_task.h"

#include <utility>

#include "runtime/sequence.h"

namespace lssar {
namespace {

// The last token's own K and V are of no use to anyone.
void AppendAllButLast(std::span<const int32_t> ids, std::vector<int32_t>* tokens) {
  tokens->insert(tokens->end(), ids.begin(), ids.end() - 1);
}

}  // namespace

ScoreTask::ScoreTask(const ScoreParams* params, int num_context_tokens)
    : params_(params), num_context_tokens_(num_context_tokens) {}

void ScoreTask::Start(Sequence* sequence) const { AppendAllButLast(Current(), &sequence->tokens); }

bool ScoreTask::WantsLogits(const Sequence&, int position) const {
  return position + 1 >= num_context_tokens_;
}

absl::StatusOr<RowTarget> ScoreTask::Choose(const Sequence&, int position,
                                            std::span<const float> logits, Sampler*) {
  const std::optional<int32_t> best = BestToken(logits);
  if (!best) return LogitsNotFinite(position);
  const int32_t id = Current()[size_t(position + 1 - num_context_tokens_)];
  score_.is_greedy &= id == *best;
  return RowTarget{.id = id, .num_top = params_->num_logprobs};
}

void ScoreTask::Take(int, const RowTarget& target, RowLogprobs* logprobs) {
  score_.tokens.push_back(MakeTokenResult(target, logprobs));
  score_.logprob += double(score_.tokens.back().logprob);
}

void ScoreTask::Advance(Sequence* sequence) {
  if (score_.tokens.size() < Current().size()) return;  // its rows go on in the next step
  score_.index = next_++;
  finished_ = std::exchange(score_, {});
  if (IsDone()) return;
  sequence->tokens.resize(size_t(num_context_tokens_));
  sequence->num_computed = num_context_tokens_ - 1;
  AppendAllButLast(Current(), &sequence->tokens);
}

void ScoreTask::Publish(TokenSink* sink) {
  if (finished_) sink->OnScore(*std::exchange(finished_, std::nullopt));
}

}  // namespace lssar
