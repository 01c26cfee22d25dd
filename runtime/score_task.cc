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
  return position + 1 >= num_context_tokens_ + NumTaken();
}

int ScoreTask::FirstWantedRow(const Sequence&) const {
  return num_context_tokens_ + NumTaken() - 1;
}

void ScoreTask::TakeCached(int first, std::span<const TokenScore> scores) {
  if (params_->num_logprobs > 0) return;  // the best beside them are not kept
  for (size_t i = 0; i < scores.size(); ++i) {
    const int ahead = first + int(i) - num_context_tokens_ - NumTaken();
    if (ahead < 0) continue;
    if (ahead > 0 || !scores[i].is_known) return;
    score_.is_greedy &= scores[i].is_greedy;
    scores_.push_back(scores[i]);
    Add({.id = Current()[size_t(NumTaken())], .logprob = scores[i].logprob});
  }
}

void ScoreTask::ReadScores(int first, std::span<TokenScore> scores) const {
  for (size_t i = 0; i < scores.size(); ++i) {
    const int idx = first + int(i) - num_context_tokens_;
    if (idx >= 0 && idx < NumTaken()) scores[i] = scores_[size_t(idx)];
  }
}

absl::StatusOr<RowTarget> ScoreTask::Choose(const Sequence&, int position,
                                            std::span<const float> logits, Sampler*) {
  const std::optional<int32_t> best = BestToken(logits);
  if (!best) return LogitsNotFinite(position);
  const int32_t id = Current()[size_t(position + 1 - num_context_tokens_)];
  scores_.push_back({.is_greedy = id == *best});
  return RowTarget{.id = id, .num_top = params_->num_logprobs};
}

void ScoreTask::Take(int, const RowTarget& target, RowLogprobs* logprobs) {
  TokenScore& score = scores_[size_t(NumTaken())];
  score.logprob = logprobs->target;
  score.is_known = true;
  score_.is_greedy &= score.is_greedy;
  Add(MakeTokenResult(target, logprobs));
}

void ScoreTask::Add(TokenResult token) {
  score_.logprob += double(token.logprob);
  score_.tokens.push_back(std::move(token));
}

void ScoreTask::Advance(Sequence* sequence) {
  if (NumTaken() < int(Current().size())) return;  // its rows go on in the next step
  score_.index = next_++;
  finished_ = std::exchange(score_, {});
  scores_.clear();
  if (IsDone()) return;
  sequence->tokens.resize(size_t(num_context_tokens_));
  sequence->num_computed = num_context_tokens_ - 1;
  AppendAllButLast(Current(), &sequence->tokens);
}

void ScoreTask::Publish(TokenSink* sink) {
  if (finished_) sink->OnScore(*std::exchange(finished_, std::nullopt));
}

}  // namespace lssar
