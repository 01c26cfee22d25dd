#include "runtime/batch_builder.h"

namespace lssar {

void BuildForwardBatch(const StepPlan& plan, std::span<Sequence* const> running,
                       ForwardBatch* batch) {
  batch->Clear();
  for (const PlannedRows& planned : plan) {
    const Sequence& sequence = *running[size_t(planned.sequence_idx)];
    const int first_position = sequence.num_computed;
    const auto first_row = int(batch->token_ids.size());
    const auto first_token = sequence.tokens.begin() + first_position;
    batch->token_ids.insert(batch->token_ids.end(), first_token, first_token + planned.num_rows);
    for (int i = 0; i < planned.num_rows; ++i) {
      if (!sequence.task->WantsLogits(sequence, first_position + i)) continue;
      batch->logits_indices.push_back(first_row + i);
      batch->logits_sequences.push_back(int32_t(batch->sequences.size()));
      if (const HeadCapture* heads = sequence.task->Capture()) {
        batch->captures.push_back(
            {.row = first_row + i, .sequence_idx = int(batch->sequences.size()), .heads = *heads});
      }
    }
    batch->sequences.push_back({.first_row = first_row,
                                .num_rows = planned.num_rows,
                                .first_position = first_position,
                                .pages = sequence.pages});
    batch->rope_bases.push_back(sequence.rope_base);
  }
}

}  // namespace lssar
