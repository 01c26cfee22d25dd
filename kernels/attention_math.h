// AttentionSpec (attention_spec.h): its check, and the terms of stage 1 in double. The reference is
// built from them. Faster backends compute a row with them where fp32 leaves too few digits.
#ifndef LSSAR_KERNELS_ATTENTION_MATH_H_
#define LSSAR_KERNELS_ATTENTION_MATH_H_

#include "absl/status/status.h"
#include "kernels/attention_spec.h"

namespace lssar {

// Errors  INVALID_ARGUMENT: a power is not a positive finite number and the kind has a stage 2, or
//         there are steps and it has none; a step without a power, or steps whose min_keys do not
//         rise from 1;
//         max_position_embeddings is below 1 and the kind needs it; the window is negative; a
//         window or ALiBi of another kind than softmax
absl::Status CheckAttentionSpec(const AttentionSpec& spec);

// A row of N = num_keys keys takes phi of ScaleOf(...) <q, k_j> + ShiftOf(...).
double ScaleOf(const AttentionSpec& spec, int head_dim, int num_keys);
double ShiftOf(const AttentionSpec& spec, int num_keys);

// What a score loses for each token between the row and the key, in one query head: 2^(-8 h / n),
// h = 1..n, for a power of two; else as published, with every second one of the next power of two.
// Requires  0 <= head < num_heads
// Source    arXiv 2108.12409, and its authors' code
double AlibiSlope(int head, int num_heads);

double PhiOf(Phi phi, double score);

// Below this score sigmoid(s) is e^s to the last bit of a double. A row whose scores are all below
// it and that is divided by its sum (IsExpRow) has the weights of e^s, from which the largest score
// can be subtracted: its sum would underflow.
inline constexpr double kExpScore = -40;
// largest: the row's largest score.
bool IsExpRow(const AttentionForm& form, double largest);

// row_norm: the row's sum of |phi|.
double DivisorOf(const AttentionSpec& spec, double row_norm);

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_MATH_H_
