#include "runtime/model_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// Tokens whose logits are copied from the model at once: 13 MB of a GPT-2 vocabulary.
constexpr size_t kLogitsRows = 64;

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
  hidden_runs_.clear();
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
        AddHiddenRow(first_token + i, sequence_idx, sequence->task->HiddenLayers());
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
    if (const Steering* steering = group->request.steering.get()) {
      batch_.steered.push_back({.sequence_idx = sequence_idx, .vectors = steering->vectors});
    }
  }
  PlaceHiddenRuns();
  if (sampler_) sampler_->AddCapture(scheduled, &batch_);
}

void ModelRunner::AddHiddenRow(int row, int32_t sequence_idx, std::span<const int32_t> layers) {
  const bool goes_on =
      !hidden_runs_.empty() && hidden_runs_.back().sequence_idx == sequence_idx &&
      hidden_runs_.back().rows.first_row + hidden_runs_.back().rows.num_rows == row;
  if (!goes_on) {
    hidden_runs_.push_back(
        {.sequence_idx = sequence_idx, .rows = {.first_row = row, .layers = layers}});
  }
  ++hidden_runs_.back().rows.num_rows;
  if (std::ranges::count(layers, kFinalNorm) > 0) batch_.hidden_indices.push_back(row);
}

void ModelRunner::PlaceHiddenRuns() {
  const auto has_residual = [](const HiddenRun& run) {
    return std::ranges::any_of(run.rows.layers, [](int32_t layer) { return layer != kFinalNorm; });
  };
  const auto size_of = [&](const HiddenRun& run) {
    return run.rows.layers.size() * size_t(run.rows.num_rows) *
           size_t(model_->Config().hidden_size);
  };
  size_t num_floats = 0;
  for (const HiddenRun& run : hidden_runs_) num_floats += has_residual(run) ? size_of(run) : 0;
  residual_states_.resize(num_floats);
  float* next = residual_states_.data();
  for (HiddenRun& run : hidden_runs_) {
    if (!has_residual(run)) continue;
    run.rows.out = std::exchange(next, next + size_of(run));
    batch_.hidden_captures.push_back(run.rows);
  }
}

absl::Status ModelRunner::Forward(const std::atomic<bool>* interrupt) {
  batch_.interrupt = batch_.captures.empty() ? interrupt : nullptr;
  batch_.num_layers_begun = &num_layers_begun_;
  attention_.assign(batch_.sequences.size(), AttentionStats{});
  return model_->Forward(batch_, kv_, attention_.data());
}

absl::Status ModelRunner::Sample(const absl::Status& forward,
                                 std::span<ScheduledSequence> scheduled) {
  ++totals_.num_steps;
  absl::Status status = forward;
  if (status.ok()) RequestSamples(scheduled);
  // Also after a failed Forward: the device must not touch pages that are freed from here on.
  status.Update(model_->Synchronize());
  if (status.ok()) {
    CountTokens(scheduled);
    status = DeliverResults(scheduled);
    status.Update(DeliverHiddenStates(scheduled));
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
    sequence.attention += attention_[i];
    totals_.attention += attention_[i];
  }
}

// Verifies drafts: a result after a draft token is delivered only if all draft tokens up to it are
// what was sampled. It then is the result that a step without a draft would have given. Where the
// logits after a draft token are not finite, the token is rejected, and a later step meets them
// without a draft.
absl::Status ModelRunner::DeliverResults(std::span<ScheduledSequence> scheduled) {
  logits_.clear();
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
    if (sequence->task->WantsLogits()) {
      ASSIGN_OR_RETURN(const std::span<const float> logits, LogitsOf(i));
      sequence->task->OnLogits(position, logits);
    }
    sequence->task->OnSampleResult(position, &results_[i]);
    if (num_draft >= 0 && num_draft < int(sequence->draft.size()) &&
        sequence->draft[size_t(num_draft)] == results_[i].id) {
      num_accepted = num_draft + 1;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> ModelRunner::LogitsOf(size_t index) {
  const auto vocab = size_t(model_->Config().vocab_size);
  if (logits_.empty() || index >= first_logits_ + logits_.size() / vocab) {
    const auto same = std::ranges::find_if(
        batch_.logits_sequences.begin() + std::ptrdiff_t(index), batch_.logits_sequences.end(),
        [&](int32_t each) { return each != batch_.logits_sequences[index]; });
    const auto num_left = size_t(same - batch_.logits_sequences.begin()) - index;
    const size_t count = std::min(num_left, kLogitsRows);
    first_logits_ = index;
    logits_.resize(count * vocab);
    RETURN_IF_ERROR(model_->CopyLogits(batch_, int(index), int(count), logits_));
  }
  return std::span(logits_).subspan((index - first_logits_) * vocab, vocab);
}

absl::Status ModelRunner::DeliverHiddenStates(std::span<ScheduledSequence> scheduled) {
  const auto hidden_size = size_t(model_->Config().hidden_size);
  final_states_.resize(batch_.hidden_indices.size() * hidden_size);
  if (!final_states_.empty()) RETURN_IF_ERROR(model_->CopyHiddenStates(batch_, final_states_));
  const float* final_state = final_states_.data();
  for (const auto& [sequence_idx, rows] : hidden_runs_) {
    auto& [group, sequence, num_tokens, status] = scheduled[size_t(sequence_idx)];
    for (int i = 0; i < rows.num_rows; ++i) {
      token_states_.clear();
      for (size_t k = 0; k < rows.layers.size(); ++k) {
        const bool is_final = rows.layers[k] == kFinalNorm;
        const float* const state =
            is_final ? final_state
                     : rows.out + (k * size_t(rows.num_rows) + size_t(i)) * hidden_size;
        token_states_.insert(token_states_.end(), state, state + hidden_size);
        if (is_final) final_state += hidden_size;
      }
      if (!status.ok()) continue;
      const int position = PositionOf(sequence_idx, rows.first_row + i);
      const bool is_finite =
          std::ranges::all_of(token_states_, [](float value) { return std::isfinite(value); });
      if (is_finite) {
        sequence->task->OnHiddenState(position, token_states_);
      } else {
        status = HiddenStateNotFinite(position);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace lssar
