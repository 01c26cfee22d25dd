// After a forward step: the logits that sequences asked for, a bounded block at a time.
#ifndef LSSAR_RUNTIME_LOGITS_READER_H_
#define LSSAR_RUNTIME_LOGITS_READER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "models/language_model.h"
#include "runtime/sampler.h"
#include "runtime/sequence.h"

namespace lssar {

class LogitsReader {
 public:
  // `model` must outlive the reader.
  explicit LogitsReader(LanguageModel* model) : model_(model) {}

  // Hands each row of batch.logits_rows to its sequence's task (Choose, Take), in blocks of
  // MaxLogitsRows. Element i of `sequences` and `failures` belongs to batch.sequences[i]. A
  // sequence whose logits are not finite gets its failure, and none of its further rows are handed
  // on. Errors  the backend's
  absl::Status Read(const ForwardBatch& batch, std::span<Sequence* const> sequences,
                    std::span<absl::Status> failures);

 private:
  struct Row {
    Sequence* sequence;
    absl::Status* failure;
    int position;
  };
  static Row RowAt(const ForwardBatch& batch, int i, std::span<Sequence* const> sequences,
                   std::span<absl::Status> failures);
  void Choose(const LogitsBlock& block);
  void TakeLogprobs();

  LanguageModel* model_;
  Sampler sampler_;
  // Of the block, one element a row.
  std::vector<Row> rows_;
  std::vector<RowTarget> targets_;
  std::vector<int32_t> target_ids_, num_top_;
  std::vector<RowLogprobs> logprobs_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_LOGITS_READER_H_
