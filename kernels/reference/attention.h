// The definition of Attention in code.
#ifndef LSSAR_KERNELS_REFERENCE_ATTENTION_H_
#define LSSAR_KERNELS_REFERENCE_ATTENTION_H_

#include "kernels/ops.h"

namespace lssar {

void ReferenceAttention(const AttentionArgs& args);

// One query row of one head over the first `num_keys` keys of its sequence. q, out [head_dim];
// adds to `counters`. For other backends, too: rows that fp32 cannot weigh.
void ReferenceAttendRow(const AttentionArgs& args, const SequenceRows& sequence, int head,
                        int num_keys, const float* q, float* out, AttentionCounters& counters);

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_ATTENTION_H_
