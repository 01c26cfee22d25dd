#include "runtime/model_runner.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

absl::Status LogitsNotFinite(int position) {
  return absl::DataLossError(StrCat("the model's logits at position ", position,
                                    " hold a NaN or an infinity: this request cannot go on"));
}

absl::Status HiddenStateNotFinite(int position) {
  return absl::DataLossError(StrCat("the hidden state at position ", position,
                                    " holds a NaN or an infinity: this request cannot go on"));
}

absl::Status StepFailed(const absl::Status& status) {
  return absl::InternalError(StrCat("the model step failed: ", status.ToString()));
}

}  // namespace

void ModelRunner::PrepareBatch(std::span<const ScheduledSequence> scheduled) {
  batch_.Clear();
  for (const auto& [group, sequence, num_tokens, status] : scheduled) {
    const auto sequence_idx = int32_t(batch_.sequences.size());
    const auto first_token = int(batch_.token_ids.size());
    const int first_position = sequence->num_computed_tokens;
    const auto ids = sequence->tokens.begin() + first_position;
    const auto num_draft = int(sequence->draft.size());
    batch_.token_ids.insert(batch_.token_ids.end(), ids, ids + (num_tokens - num_draft));
    batch_.token_ids.insert(batch_.token_ids.end(), sequence->draft.begin(), sequence->draft.end());
    for (int i = 0; i < num_tokens; ++i) {
      if (sequence->task->NeedsHiddenState(*sequence, first_position + i)) {
        batch_.hidden_indices.push_back(first_token + i);
        batch_.hidden_sequences.push_back(sequence_idx);
      }
      if (!sequence->task->NeedsLogits(*sequence, first_position + i)) continue;
      batch_.logits_indices.push_back(first_token + i);
      batch_.logits_sequences.push_back(sequence_idx);
      if (const HeadCapture* heads = sequence->task->Capture()) {
        batch_.captures.push_back(
            {.row = first_token + i, .sequence_idx = sequence_idx, .heads = *heads});
      }
    }
    batch_.sequences.push_back({.first_row = first_token,
                                .num_rows = num_tokens,
                                .first_position = first_position,
                                .pages = sequence->pages});
    batch_.rope_bases.push_back(sequence->rope_base);
    const auto& attention = group->request.attention;
    batch_.attention.push_back(attention ? &attention->layers : nullptr);
  }
  if (sampler_) sampler_->AddCapture(scheduled, &batch_);
}

absl::Status ModelRunner::Forward() {
  ++totals_.num_steps;
  attention_.assign(batch_.sequences.size(), AttentionStats{});
  return model_->Forward(batch_, kv_, attention_.data());
}

absl::Status ModelRunner::Sample(const absl::Status& forward,
                                 std::span<ScheduledSequence> scheduled) {
  absl::Status status = forward;
  if (status.ok()) RequestSamples(scheduled);
  // Also after a failed Forward: the device must not touch pages that are freed from here on.
  status.Update(model_->Synchronize());
  if (status.ok()) {
    CountTokens(scheduled);
    DeliverResults(scheduled);
    status = DeliverHiddenStates(scheduled);
    if (status.ok()) return status;
  }
  status = StepFailed(status);
  for (ScheduledSequence& sequence : scheduled) sequence.status = status;
  return status;
}

int ModelRunner::PositionOf(int32_t sequence_idx, int32_t token_idx) const {
  const SequenceSlice& slice = batch_.sequences[size_t(sequence_idx)];
  return slice.first_position + token_idx - slice.first_row;
}

void ModelRunner::RequestSamples(std::span<const ScheduledSequence> scheduled) {
  const size_t num_requests = batch_.logits_indices.size();
  if (num_requests == 0) return;
  requests_.clear();
  for (size_t i = 0; i < num_requests; ++i) {
    const int32_t sequence_idx = batch_.logits_sequences[i];
    const Sequence& sequence = *scheduled[size_t(sequence_idx)].sequence;
    const int position = PositionOf(sequence_idx, batch_.logits_indices[i]);
    requests_.push_back(sequence.task->MakeSampleRequest(sequence, position));
  }
  if (results_.size() < num_requests) results_.resize(num_requests);
  model_->Sample(batch_, requests_, std::span(results_).first(num_requests));
}

void ModelRunner::CountTokens(std::span<const ScheduledSequence> scheduled) {
  totals_.num_batched_tokens += NumTokens();
  for (size_t i = 0; i < scheduled.size(); ++i) {
    Sequence& sequence = *scheduled[i].sequence;
    totals_.num_prompt_tokens += std::clamp(
        sequence.num_prompt_tokens - sequence.num_computed_tokens, 0, scheduled[i].num_tokens);
    Add(attention_[i], &sequence.attention);
    Add(attention_[i], &totals_.attention);
  }
}

// Verifies drafts: a result after a draft token is delivered only if all draft tokens up to it are
// what was sampled. It then is the result that a step without a draft would have given. Where the
// logits after a draft token are not finite, the token is rejected, and a later step meets them
// without a draft.
void ModelRunner::DeliverResults(std::span<ScheduledSequence> scheduled) {
  int num_accepted = 0;  // draft tokens of the sequence so far
  for (size_t i = 0; i < batch_.logits_indices.size(); ++i) {
    auto& [group, sequence, num_tokens, status] = scheduled[size_t(batch_.logits_sequences[i])];
    if (!status.ok()) continue;
    const int position = PositionOf(batch_.logits_sequences[i], batch_.logits_indices[i]);
    const int num_draft = position + 1 - int(sequence->tokens.size());  // draft tokens before it
    if (num_draft <= 0) {
      num_accepted = 0;
    } else if (num_draft > num_accepted || !results_[i].finite) {
      continue;
    }
    if (!results_[i].finite) {
      status = LogitsNotFinite(position);
      continue;
    }
    sequence->task->OnSampleResult(position, &results_[i]);
    if (num_draft >= 0 && num_draft < int(sequence->draft.size()) &&
        sequence->draft[size_t(num_draft)] == results_[i].id) {
      num_accepted = num_draft + 1;
    }
  }
}

absl::Status ModelRunner::DeliverHiddenStates(std::span<ScheduledSequence> scheduled) {
  if (batch_.hidden_indices.empty()) return absl::OkStatus();
  const auto hidden_size = size_t(model_->Config().hidden_size);
  hidden_.resize(batch_.hidden_indices.size() * hidden_size);
  RETURN_IF_ERROR(model_->CopyHiddenStates(batch_, hidden_));
  for (size_t i = 0; i < batch_.hidden_indices.size(); ++i) {
    const int32_t sequence_idx = batch_.hidden_sequences[i];
    auto& [group, sequence, num_tokens, status] = scheduled[size_t(sequence_idx)];
    if (!status.ok()) continue;
    const int position = PositionOf(sequence_idx, batch_.hidden_indices[i]);
    const std::span<const float> hidden = std::span(hidden_).subspan(i * hidden_size, hidden_size);
    const bool is_finite =
        std::ranges::all_of(hidden, [](float value) { return std::isfinite(value); });
    if (is_finite) {
      sequence->task->OnHiddenState(position, hidden);
    } else {
      status = HiddenStateNotFinite(position);
    }
  }
  return absl::OkStatus();
}

}  // namespace lssar
