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

// Steps of the power by number of keys in one request, at most.
inline constexpr int kMaxPowerSteps = 64;

// The power of the layers that re-weight: at most one of the fields is set.
struct PowerChange {
  std::optional<double> p = {};
  std::vector<double> by_layer = {};  // [num_hidden_layers]
  // [num_attention_heads], of every layer, or [num_hidden_layers * num_attention_heads]: of each
  // head of layer 0, then of layer 1, ...
  std::vector<double> by_head = {};
};

// Another power for the rows of at least min_keys keys.
struct PowerStepChange {
  int min_keys = 0;
  PowerChange power = {};
};

// What a request changes, with the names of config.json's attention object.
struct AttentionChange {
  std::optional<double> p = {};  // as in PowerChange; no power set: the checkpoint's
  std::string_view kind = {};    // of every layer; empty: each layer keeps its own
  std::string_view phi = {};     // of kind "phi"
  std::vector<double> p_by_layer = {};
  std::vector<double> p_by_head = {};
  std::vector<PowerStepChange> p_by_length = {};
};

// The attention of each layer after `change`, as a checkpoint would have it whose config.json says
// the same, where one can. Fields that a layer's kind does not use are those of a default
// AttentionSpec, and there are no more steps than the function needs.
// Errors  INVALID_ARGUMENT: p out of [kMinAttentionP, kMaxAttentionP]; no such kind or phi; p where
//         no layer re-weights, or no p where the checkpoint has none; phi without kind "phi" or the
//         reverse; a list of another length; two powers in one place; steps that do not rise from 2
//         keys on, or more than kMaxPowerSteps; a change of nothing. The message starts with
//         "attention_override."
absl::StatusOr<std::vector<AttentionSpec>> ChangeAttention(const ModelConfig& config,
                                                           const AttentionChange& change);

// "lssar p=15", "softmax", "phi phi=relu"; where layers differ: "lssar p=15 (0-3), softmax (4)".
// Powers of each head: "lssar p=3/3/15/5"; from 256 keys on: "lssar p=15 N>=256:5".
// Equal names mean equal functions, within one checkpoint. The end of a name over 1 KiB is the
// SHA-256 of the whole.
std::string DescribeAttention(std::span<const AttentionSpec> layers);

// True if the two compute the same: equal in the fields that their kinds use.
bool IsSameAttention(std::span<const AttentionSpec> a, std::span<const AttentionSpec> b);

}  // namespace lssar

#endif  // LSSAR_MODELS_ATTENTION_OVERRIDE_H_
