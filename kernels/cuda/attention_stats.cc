#include "kernels/cuda/attention_stats.h"

#include "base/check.h"

namespace lssar {

bool AttentionStatsBuffer::Begin(AttentionStats* counters, size_t num_sequences) {
  LSSAR_CHECK(CanCountFor(counters, num_sequences));
  if (counters_ != nullptr) return true;
  num_value_rows_.assign(num_sequences, 0);
  void* const counts = context_.Reserve<void>(IsOfMany() ? of_many_ : of_few_,
                                              2 * Stride(num_sequences) * sizeof(int64_t));
  if (counts == nullptr || !context_.Check(context_.Driver().Clear(counts, NumBytes()),
                                           "clearing attention statistics")) {
    return false;
  }
  counters_ = counters;
  return true;
}

void AttentionStatsBuffer::AddRows(const RaggedBatch& rows, int num_heads) {
  for (size_t s = 0; s < rows.sequences.size(); ++s) {
    const SequenceSlice& sequence = rows.sequences[s];
    const int64_t first = sequence.first_position + 1;
    const int64_t last = sequence.first_position + sequence.num_rows;
    num_value_rows_[s] += int64_t{num_heads} * (first + last) * sequence.num_rows / 2;
  }
}

void AttentionStatsBuffer::Fetch() {
  if (counters_ == nullptr || !context_.IsOk()) return;
  const absl::StatusOr<void*> to = on_host_.Reserve(NumBytes());
  if (!to.ok()) return context_.RecordError(to.status());
  context_.Check(context_.Driver().CopyOutAsync(*to, RowsRead(), NumBytes()),
                 "copying attention statistics");
}

void AttentionStatsBuffer::Publish() {
  if (counters_ != nullptr && context_.IsOk()) {
    const int64_t* const num_read = static_cast<const int64_t*>(on_host_.Address());
    for (size_t s = 0; s < num_value_rows_.size(); ++s) {
      counters_[s].num_value_rows += num_value_rows_[s];
      counters_[s].num_value_rows_read += num_read[s];
      counters_[s].num_flat_rows += num_read[Stride(num_value_rows_.size()) + s];
    }
  }
  counters_ = nullptr;
}

}  // namespace lssar
