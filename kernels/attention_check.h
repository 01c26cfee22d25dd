// What backends answer to Backend::CheckAttention.
#ifndef LSSAR_KERNELS_ATTENTION_CHECK_H_
#define LSSAR_KERNELS_ATTENTION_CHECK_H_

#include "absl/status/status.h"
#include "kernels/attention_spec.h"

namespace lssar {

// Of the reference and the cpu backend, which compute every kind.
// Errors  INVALID_ARGUMENT: p not a positive finite number where the kind has a p; no trained
//         context where the kind has need of one
absl::Status CheckAttentionSpec(const AttentionSpec& spec);

// Errors  CheckAttentionSpec's; UNIMPLEMENTED: a kind other than lssar, lssa and softmax
absl::Status CheckCudaAttention(const AttentionSpec& spec);

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_CHECK_H_
