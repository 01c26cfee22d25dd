// Between a forward step and the tasks: what they ask of the rows they want, and what comes of it.
#ifndef LSSAR_RUNTIME_ROW_SAMPLER_H_
#define LSSAR_RUNTIME_ROW_SAMPLER_H_

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "models/language_model.h"
#include "runtime/sequence.h"

namespace lssar {

// Element i of `sequences` belongs to batch.sequences[i].
class RowSampler {
 public:
  // Has the model sample each of batch.logits_indices as its sequence's task asks. The results are on
  // their way until the model's Synchronize.
  void Ask(const ForwardBatch& batch, std::span<Sequence* const> sequences, LanguageModel* model);

  // Hands each row's result to its task. A sequence whose logits are not finite gets its failure
  // (element i of `failures`), and none of its further rows are handed on.
  // Requires  Ask with the same batch and sequences, then Synchronize
  void HandOut(const ForwardBatch& batch, std::span<Sequence* const> sequences,
               std::span<absl::Status> failures);

 private:
  // Of the step, one element a row.
  std::vector<SampleRequest> asked_;
  std::vector<SampleResult> sampled_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ROW_SAMPLER_H_
