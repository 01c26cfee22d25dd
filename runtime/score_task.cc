#include "runtime/score_task.h"

#include <utility>

#include "kernels/check.h"
#include "runtime/sequence.h"

namespace lssar {
namespace {

// The last token's own K and V are of no use to anyone.
void AppendAllButLast(std::span<const int32_t> ids, std::vector<int32_t>* tokens) {
  tokens->insert(tokens->end(), ids.begin(), ids.end() - 1);
}

}  // namespace

int ScoreItem::TakeNext() {
  return num_taken_ == int(params_->continuations.size()) ? -1 : num_taken_++;
}

void ScoreItem::Finish(ContinuationScore score) {
  finished_[size_t(score.index)] = std::move(score);
}

void ScoreItem::Publish(OutputSink* sink) {
  while (num_published_ < num_taken_ && finished_[size_t(num_published_)]) {
    sink->OnScore(*std::exchange(finished_[size_t(num_published_++)], std::nullopt));
  }
}

ScoreTask::ScoreTask(std::shared_ptr<ScoreItem> item)
    : item_(std::move(item)), current_(item_->TakeNext()) {
  LSSAR_CHECK(current_ >= 0);
}

void ScoreTask::Start(Sequence* sequence) const { AppendAllButLast(Current(), &sequence->tokens); }

bool ScoreTask::WantsLogits(const Sequence&, int position) const {
  return position + 1 >= NumContextTokens() + NumTaken();
}

int ScoreTask::FirstWantedRow(const Sequence&) const { return NumContextTokens() + NumTaken() - 1; }

void ScoreTask::TakeCached(int first, std::span<const TokenScore> scores) {
  if (item_->NumLogprobs() > 0) return;  // the best beside them are not kept
  for (size_t i = 0; i < scores.size(); ++i) {
    const int ahead = first + int(i) - NumContextTokens() - NumTaken();
    if (ahead < 0) continue;
    if (ahead > 0 || !scores[i].is_known) return;
    score_.is_greedy &= scores[i].is_greedy;
    scores_.push_back(scores[i]);
    Add({.id = Current()[size_t(NumTaken())], .logprob = scores[i].logprob});
  }
}

void ScoreTask::ReadScores(int first, std::span<TokenScore> scores) const {
  for (size_t i = 0; i < scores.size(); ++i) {
    const int idx = first + int(i) - NumContextTokens();
    if (idx >= 0 && idx < NumTaken()) scores[i] = scores_[size_t(idx)];
  }
}

SampleRequest ScoreTask::Ask(const Sequence&, int position) const {
  return {.target = Current()[size_t(position + 1 - NumContextTokens())],
          .counts = {},
          .num_logprobs = item_->NumLogprobs()};
}

void ScoreTask::Take(int, SampleResult* row) {
  scores_.push_back({.logprob = row->logprob, .is_known = true, .is_greedy = row->is_best});
  score_.is_greedy &= row->is_best;
  Add(MakeTokenResult(row));
}

void ScoreTask::Add(TokenResult token) {
  score_.logprob += double(token.logprob);
  score_.tokens.push_back(std::move(token));
}

void ScoreTask::Advance(Sequence* sequence) {
  if (NumTaken() < int(Current().size())) return;  // its rows go on in the next step
  score_.index = current_;
  item_->Finish(std::exchange(score_, {}));
  scores_.clear();
  current_ = item_->TakeNext();
  if (IsDone()) return;
  sequence->tokens.resize(size_t(NumContextTokens()));
  sequence->num_computed = NumContextTokens() - 1;
  AppendAllButLast(Current(), &sequence->tokens);
}

void ScoreTask::Publish(OutputSink* sink) { item_->Publish(sink); }

}  // namespace lssar
