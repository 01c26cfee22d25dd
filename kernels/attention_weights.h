// What Attention multiplies the values by, for those who want to look at it.
#ifndef LSSAR_KERNELS_ATTENTION_WEIGHTS_H_
#define LSSAR_KERNELS_ATTENTION_WEIGHTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lssar {

// One row's final weights w_j (kernels/README.md) in one head, of any backend: q and K as that
// backend computed and keeps them, the function as the reference defines it, in double. Waits for
// what runs.
// Shapes    q as Attention's; the result [N]
// Requires  as Attention, whose q it is; `row` one of the sequence's, counted in the batch
// Ensures   zero where, and only where, the reference reads no value; their sum is 1
// Accuracy  sum_j w_j v_j is Attention's out within what ops.h allows that
// Cost      N keys of one head copied to the host; 0.2 us a key on one thread
// Errors    CopyOut's
struct AttentionWeightsArgs {
  const SequenceSlice* sequence = nullptr;
  int row = 0;
  int layer = 0;
  int head = 0;
  AttentionSpec spec;
  const float* q = nullptr;
  KvView kv;
};
absl::StatusOr<std::vector<double>> AttentionWeights(const AttentionWeightsArgs& args,
                                                     Backend* backend);

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_WEIGHTS_H_
