#include "runtime/generate_task.h"

#include <algorithm>
#include <utility>

#include "runtime/sequence.h"

namespace lssar {

GenerateTask::GenerateTask(Options options)
    : options_(std::move(options)), text_(options_.tokenizer, options_.stop_strings) {
  if (options_.params->sampling.HasPenalties()) counts_.AddPrompt(options_.prompt);
  if (WantsPromptRows()) prompt_scores_.reserve(options_.prompt.size());
}

bool GenerateTask::WantsLogits(const Sequence& sequence, int position) const {
  if (position + 1 == int(sequence.tokens.size())) return true;
  return WantsPromptRows() && IsPromptRow(position) && position >= next_prompt_row_;
}

int GenerateTask::FirstWantedRow(const Sequence& sequence) const {
  if (WantsPromptRows() && IsPromptRow(next_prompt_row_)) return next_prompt_row_;
  return int(sequence.tokens.size()) - 1;
}

void GenerateTask::TakeCached(int first, std::span<const TokenScore> scores) {
  if (!WantsPromptRows() || options_.params->num_prompt_logprobs > 0)
    return;  // the best are not kept
  for (size_t i = 0; i < scores.size() && IsPromptRow(next_prompt_row_); ++i) {
    const int ahead = first + int(i) - next_prompt_row_ - 1;
    if (ahead < 0) continue;
    if (ahead > 0 || !scores[i].is_known) return;
    AddPromptToken({.id = options_.prompt[size_t(first) + i], .logprob = scores[i].logprob},
                   scores[i]);
  }
}

void GenerateTask::ReadScores(int first, std::span<TokenScore> scores) const {
  for (size_t i = 0; i < scores.size(); ++i) {
    const int idx = first + int(i) - 1;  // a text's first token has no score
    if (idx >= 0 && idx < int(prompt_scores_.size())) scores[i] = prompt_scores_[size_t(idx)];
  }
}

SampleRequest GenerateTask::Ask(const Sequence& sequence, int position) const {
  const GenerateParams& params = *options_.params;
  if (IsPromptRow(position)) {
    return {.target = sequence.tokens[size_t(position) + 1],
            .counts = {},
            .num_logprobs = params.num_prompt_logprobs};
  }
  return {.params = &params.sampling,
          .counts = counts_.Counts(),
          .choice = options_.choice,
          .position = position + 1,
          .num_logprobs = params.num_logprobs};
}

void GenerateTask::Take(int position, SampleResult* row) {
  if (IsPromptRow(position)) {
    const TokenScore score = {.logprob = row->logprob, .is_known = true, .is_greedy = row->is_best};
    AddPromptToken(MakeTokenResult(row), score);
  } else {
    drawn_ = MakeTokenResult(row);
  }
}

void GenerateTask::AddPromptToken(TokenResult token, const TokenScore& score) {
  prompt_scores_.push_back(score);
  if (prompt_delta_.tokens.empty()) prompt_delta_.first = next_prompt_row_ + 1;
  prompt_delta_.tokens.push_back(std::move(token));
  ++next_prompt_row_;
}

void GenerateTask::Advance(Sequence* sequence) {
  if (!drawn_) return;  // a part of the prompt
  const int32_t id = drawn_->id;
  delta_.tokens.push_back(*std::exchange(drawn_, std::nullopt));
  finish_ = EndsText(id);
  if (!finish_) AddText(id);
  ++num_generated_;
  if (!finish_ && num_generated_ == options_.params->max_tokens) finish_ = FinishReason::kLength;
  if (!finish_) {
    sequence->tokens.push_back(id);
    if (options_.params->sampling.HasPenalties()) counts_.AddOutput(id);
    return;
  }
  text_.Finish(&delta_.text);
  if (const std::string* stop = text_.StopString()) {
    finish_ = FinishReason::kStopString;
    delta_.stop_string = *stop;
  }
  delta_.finish = finish_;
}

void GenerateTask::AddText(int32_t id) {
  text_.Push(id, /*match=*/num_generated_ >= options_.params->min_tokens, &delta_.text);
  if (text_.StopString() != nullptr) finish_ = FinishReason::kStopString;
}

std::optional<FinishReason> GenerateTask::EndsText(int32_t id) const {
  const GenerateParams& params = *options_.params;
  if (num_generated_ < params.min_tokens) return std::nullopt;
  if (std::ranges::count(params.stop_ids, id) > 0) return FinishReason::kStopId;
  if (id == options_.eos_id && !params.ignore_eos) return FinishReason::kEos;
  return std::nullopt;
}

void GenerateTask::Publish(OutputSink* sink) {
  if (!prompt_delta_.tokens.empty()) {
    sink->OnPromptLogprobs(std::exchange(prompt_delta_, {}));
  }
  if (delta_.tokens.empty()) return;
  delta_.choice = options_.choice;
  sink->OnTokens(std::exchange(delta_, {}));
}

}  // namespace lssar
