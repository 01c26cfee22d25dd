#include "runtime/row_sampler.h"

#include "kernels/str_cat.h"

namespace lssar {
namespace {

int PositionOf(const ForwardBatch& batch, size_t i) {
  const SequenceSlice& rows = batch.sequences[size_t(batch.logits_sequences[i])];
  return rows.first_position + batch.logits_indices[i] - rows.first_row;
}

absl::Status LogitsNotFinite(int position) {
  return absl::DataLossError(StrCat("the model's logits at position ", position,
                                    " hold a NaN or an infinity: this request cannot go on"));
}

}  // namespace

void RowSampler::Ask(const ForwardBatch& batch, std::span<Sequence* const> sequences,
                     LanguageModel* model) {
  const size_t num_rows = batch.logits_indices.size();
  if (num_rows == 0) return;
  asked_.clear();
  for (size_t i = 0; i < num_rows; ++i) {
    const Sequence& sequence = *sequences[size_t(batch.logits_sequences[i])];
    asked_.push_back(sequence.task->Ask(sequence, PositionOf(batch, i)));
  }
  // Never shrinks: a row keeps the memory of its lists.
  if (sampled_.size() < num_rows) sampled_.resize(num_rows);
  model->Sample(batch, asked_, std::span(sampled_).first(num_rows));
}

void RowSampler::HandOut(const ForwardBatch& batch, std::span<Sequence* const> sequences,
                         std::span<absl::Status> failures) {
  for (size_t i = 0; i < batch.logits_indices.size(); ++i) {
    const auto sequence_idx = size_t(batch.logits_sequences[i]);
    absl::Status& failure = failures[sequence_idx];
    if (!failure.ok()) continue;
    const int position = PositionOf(batch, i);
    if (sampled_[i].finite) {
      sequences[sequence_idx]->task->Take(position, &sampled_[i]);
    } else {
      failure = LogitsNotFinite(position);
    }
  }
}

}  // namespace lssar
