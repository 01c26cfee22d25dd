// The definition of Attention in code.
#ifndef LSSAR_KERNELS_REFERENCE_ATTENTION_H_
#define LSSAR_KERNELS_REFERENCE_ATTENTION_H_

#include "kernels/ops.h"

namespace lssar {

void ReferenceAttention(const AttentionArgs& args);

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_ATTENTION_H_
