// The weights that Attention multiplies the values by, for inspection.
#ifndef LSSAR_KERNELS_ATTENTION_WEIGHTS_H_
#define LSSAR_KERNELS_ATTENTION_WEIGHTS_H_

#include "absl/status/statusor.h"
#include "kernels/attention_row.h"
#include "kernels/backend.h"

namespace lssar {

// The final weights w_j (kernels/README.md) of one row in one query head, for any backend: from q
// and K as the backend stores them, by the reference's definition, in double. Waits for running
// ops.
// Shapes    q as in Attention; the weights [N]
// Requires  as Attention, with the same q; `row` is a row of the sequence, counted in the batch
// Ensures   a weight is zero exactly where the reference reads no value; the weights sum to 1
// Accuracy  sum_j w_j v_j is Attention's out within the bound of ops.h
// Cost      copies N keys of one head to the host; 0.2 us per key on one thread
// Errors    CopyOut's
struct AttentionWeightsArgs {
  const SequenceSlice* sequence = nullptr;
  int row = 0;
  int layer = 0;
  int num_heads = 0;  // query heads
  int head = 0;
  AttentionSpec spec;
  const float* q = nullptr;
  KvView kv;
};
absl::StatusOr<AttentionRow> AttentionWeights(const AttentionWeightsArgs& args, Backend* backend);

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_WEIGHTS_H_
