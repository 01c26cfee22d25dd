// Stage 1 of attention (attention_spec.h) in double: what the reference is made of, and what faster
// backends compute a row with where fp32 leaves too little of it.
#ifndef LSSAR_KERNELS_ATTENTION_STAGE_ONE_H_
#define LSSAR_KERNELS_ATTENTION_STAGE_ONE_H_

#include "kernels/attention_spec.h"

namespace lssar {

// A row of N = num_keys keys takes phi of ScaleOf(...) <q, k_j> + ShiftOf(...).
double ScaleOf(const AttentionSpec& spec, int head_dim, int num_keys);
double ShiftOf(const AttentionSpec& spec, int num_keys);

double PhiOf(Phi phi, double score);

// row_norm: the row's sum of |phi|.
double DivisorOf(const AttentionSpec& spec, double row_norm);

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_STAGE_ONE_H_
