// Another attention than the checkpoint's, for one request.
#ifndef LSSAR_MODELS_ATTENTION_OVERRIDE_H_
#define LSSAR_MODELS_ATTENTION_OVERRIDE_H_

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention_spec.h"
#include "models/config.h"

namespace lssar {

// The least power of the re-weighting, the smallest normal number in fp32: one that fp32 rounds to
// 0 gives NaN.
inline constexpr double kMinAttentionP = std::numeric_limits<float>::min();

// What a request changes, with the names of config.json's attention object.
struct AttentionChange {
  std::optional<double> p = {};  // nullopt: the checkpoint's
  std::string_view kind = {};    // of every layer; empty: each layer keeps its own
  std::string_view phi = {};     // of kind "phi"
};

// The attention of each layer after `change`, as a checkpoint would have it whose config.json says
// the same. Fields that a layer's kind does not use are those of a default AttentionSpec.
// Errors  INVALID_ARGUMENT: p out of [kMinAttentionP, kMaxAttentionP]; no such kind or phi; p where
//         no layer re-weights, or no p where the checkpoint has none; phi without kind "phi" or the
//         reverse; a change of nothing. The message starts with "attention_override."
absl::StatusOr<std::vector<AttentionSpec>> ChangeAttention(const ModelConfig& config,
                                                           const AttentionChange& change);

// "lssar p=15", "softmax", "phi phi=relu"; where layers differ: "lssar p=15 (0-3), softmax (4)".
// Equal names mean equal functions, within one checkpoint.
std::string DescribeAttention(std::span<const AttentionSpec> layers);

// True if the two compute the same: equal in the fields that their kinds use.
bool IsSameAttention(std::span<const AttentionSpec> a, std::span<const AttentionSpec> b);

}  // namespace lssar

#endif  // LSSAR_MODELS_ATTENTION_OVERRIDE_H_
