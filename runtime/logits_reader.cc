#include "runtime/logits_reader.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/check.h"

namespace lssar {

absl::Status LogitsReader::Read(const ForwardBatch& batch, std::span<Sequence* const> sequences,
                                std::span<absl::Status> failures) {
  const int num_rows = int(batch.logits_rows.size());
  const int block_rows = model_->MaxLogitsRows();
  LSSAR_CHECK(block_rows >= 1);
  for (int first = 0; first < num_rows; first += block_rows) {
    const int count = std::min(block_rows, num_rows - first);
    absl::StatusOr<LogitsBlock> block = model_->Logits(batch, first, count);
    if (!block.ok()) return std::move(block).status();
    rows_.clear();
    for (int i = 0; i < count; ++i) rows_.push_back(RowAt(batch, first + i, sequences, failures));
    Choose(*block);
    TakeLogprobs();
  }
  return absl::OkStatus();
}

LogitsReader::Row LogitsReader::RowAt(const ForwardBatch& batch, int i,
                                      std::span<Sequence* const> sequences,
                                      std::span<absl::Status> failures) {
  const auto sequence_idx = size_t(batch.logits_sequence[size_t(i)]);
  const SequenceRows& rows = batch.sequences[sequence_idx];
  return {.sequence = sequences[sequence_idx],
          .failure = &failures[sequence_idx],
          .position = rows.first_position + batch.logits_rows[size_t(i)] - rows.first_row};
}

void LogitsReader::Choose(const LogitsBlock& block) {
  targets_.assign(rows_.size(), RowTarget{});
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (!row.failure->ok()) continue;
    absl::StatusOr<RowTarget> target =
        row.sequence->task->Choose(*row.sequence, row.position, block.Row(int(i)), &sampler_);
    if (target.ok()) {
      targets_[i] = *target;
    } else {
      *row.failure = std::move(target).status();
    }
  }
}

void LogitsReader::TakeLogprobs() {
  if (std::ranges::all_of(targets_, [](const RowTarget& t) { return t.id < 0; })) return;
  target_ids_.clear();
  num_top_.clear();
  for (const RowTarget& target : targets_) {
    target_ids_.push_back(target.id);
    num_top_.push_back(target.num_top);
  }
  logprobs_.resize(targets_.size());
  model_->TopLogprobs(target_ids_, num_top_, logprobs_);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (targets_[i].id < 0 || !row.failure->ok()) continue;
    if (logprobs_[i].finite) {
      row.sequence->task->Take(row.position, targets_[i], &logprobs_[i]);
    } else {
      *row.failure = LogitsNotFinite(row.position);
    }
  }
}

}  // namespace lssar
