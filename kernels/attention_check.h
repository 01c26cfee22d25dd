// What every backend of this build answers to Backend::CheckAttention.
#ifndef LSSAR_KERNELS_ATTENTION_CHECK_H_
#define LSSAR_KERNELS_ATTENTION_CHECK_H_

#include "absl/status/status.h"
#include "kernels/attention_spec.h"

namespace lssar {

// Errors  UNIMPLEMENTED: a kind other than lssar, lssa and softmax
//         INVALID_ARGUMENT: p not a positive finite number where the kind has a p
absl::Status CheckHostAttention(const AttentionSpec& spec);

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_CHECK_H_
