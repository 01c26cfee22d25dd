#include "runtime/model_runner.h"

#include <algorithm>

#include "kernels/str_cat.h"

namespace lssar {
namespace {

absl::Status LogitsNotFinite(int position) {
  return absl::DataLossError(StrCat("the model's logits at position ", position,
                                    " hold a NaN or an infinity: this request cannot go on"));
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
    batch_.token_ids.insert(batch_.token_ids.end(), ids, ids + num_tokens);
    for (int i = 0; i < num_tokens; ++i) {
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
  }
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
    return status;
  }
  status = StepFailed(status);
  for (ScheduledSequence& sequence : scheduled) sequence.status = status;
  return status;
}

int ModelRunner::PositionOf(size_t logits_idx) const {
  const SequenceSlice& slice = batch_.sequences[size_t(batch_.logits_sequences[logits_idx])];
  return slice.first_position + batch_.logits_indices[logits_idx] - slice.first_row;
}

void ModelRunner::RequestSamples(std::span<const ScheduledSequence> scheduled) {
  const size_t num_requests = batch_.logits_indices.size();
  if (num_requests == 0) return;
  requests_.clear();
  for (size_t i = 0; i < num_requests; ++i) {
    const Sequence& sequence = *scheduled[size_t(batch_.logits_sequences[i])].sequence;
    requests_.push_back(sequence.task->MakeSampleRequest(sequence, PositionOf(i)));
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

void ModelRunner::DeliverResults(std::span<ScheduledSequence> scheduled) {
  for (size_t i = 0; i < batch_.logits_indices.size(); ++i) {
    auto& [group, sequence, num_tokens, status] = scheduled[size_t(batch_.logits_sequences[i])];
    if (!status.ok()) continue;
    const int position = PositionOf(i);
    if (results_[i].finite) {
      sequence->task->OnSampleResult(position, &results_[i]);
    } else {
      status = LogitsNotFinite(position);
    }
  }
}

}  // namespace lssar
