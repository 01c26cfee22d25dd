// config.json of a checkpoint: parsed, validated, every field accounted for.
#ifndef LSSAR_MODELS_CONFIG_H_
#define LSSAR_MODELS_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace lssar {

struct ModelConfig {
  int vocab_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int max_position_embeddings = 0;  // n_positions, tokens
  float layer_norm_epsilon = 1e-5f;
  double rope_theta = 10000.0;
  RopeLayout rope_layout = RopeLayout::kHalfSplit;
  std::optional<double> dynamic_ntk_factor;  // rope_scaling {"type": "dynamic", "factor": f}
  bool tie_word_embeddings = true;
  bool conv1d_layout = false;  // projections stored [in, out]
  AttentionSpec attention;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;

  int HeadDim() const { return hidden_size / num_attention_heads; }
};

// Parses the text of a config.json. `source` (its path) starts every error message.
// Errors  INVALID_ARGUMENT naming field, value and limit: not JSON, a field missing, of another
//         type or out of range, an unknown attention kind, no attention object (says what to add),
//         activation or rope scaling that this build does not compute.
absl::StatusOr<ModelConfig> ParseConfig(std::string_view json, std::string_view source);

// Rope base of a sequence that may grow to `length_budget` tokens: rope_theta, or with dynamic NTK
// theta * ((f L / L0) - (f - 1))^(d / (d - 2)), L the budget rounded up to a power-of-two multiple
// of the trained length. Fixed at admission, so a cache can hold what was computed with it.
double RopeBase(const ModelConfig& config, int length_budget);

}  // namespace lssar

#endif  // LSSAR_MODELS_CONFIG_H_
