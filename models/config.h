// config.json of a checkpoint, parsed and checked: the description of the model that gpt_weights
// and gpt read.
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
  enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
  // kPlain: activation(x W_in) W_out. kGated: (activation(x W_gate) * (x W_up)) W_out, as SwiGLU.
  enum class MlpKind : uint8_t { kPlain, kGated };

  int vocab_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_kv_heads = 0;  // divides num_attention_heads; 0: num_attention_heads
  int hidden_size = 0;
  int intermediate_size = 0;
  int max_position_embeddings = 0;  // n_positions, the trained length in tokens

  NormKind norm_kind = NormKind::kLayerNorm;
  float layer_norm_epsilon = 1e-5f;
  MlpKind mlp_kind = MlpKind::kPlain;
  Activation activation = Activation::kGeluTanh;
  bool norm_bias = true;
  bool attention_bias = true;  // of the QKV and the output projection
  bool mlp_bias = true;

  AttentionSpec attention;
  double rope_theta = 10000.0;
  RopeLayout rope_layout = RopeLayout::kHalfSplit;
  std::optional<double> dynamic_ntk_factor;  // rope_scaling {"type": "dynamic", "factor": f}

  bool tie_word_embeddings = true;
  bool conv1d_layout = false;  // projections are stored as [in, out]
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;

  int HeadDim() const { return hidden_size / num_attention_heads; }
  int NumKvHeads() const { return num_kv_heads > 0 ? num_kv_heads : num_attention_heads; }
  // Outputs of the QKV projection: every head's q, then every K/V head's k, then its v.
  int QkvSize() const { return (num_attention_heads + 2 * NumKvHeads()) * HeadDim(); }
};

// Parses the text of a config.json. `source` (its path) starts every error message.
// Errors  INVALID_ARGUMENT naming field, value and limit: not JSON; a field is missing, of another
//         type or out of range; an unknown attention kind; no attention object (the message says
//         what to add); a norm, an MLP, an activation, a head count or a rope scaling that no
//         backend computes
absl::StatusOr<ModelConfig> ParseConfig(std::string_view json, std::string_view source);

// "lssar", "softmax", ...: the names of config.json.
std::string_view NameOf(AttentionKind kind);
// nullopt: no such name.
std::optional<AttentionKind> ParseAttentionKind(std::string_view name);
// "relu", "gelu", ...: the phi of kind "phi".
std::optional<Phi> ParsePhi(std::string_view name);

// The rotary base for a sequence of exactly `length` tokens: rope_theta up to the trained length
// L0; beyond it, with dynamic NTK, theta * ((f L / L0) - (f - 1))^(d / (d - 2)) at L = length.
// Source  arXiv 2501.13428v1
double RopeBaseAtLength(const ModelConfig& config, int length);

// The rotary base of a sequence that may grow to `length_budget` tokens: RopeBaseAtLength of the
// budget rounded up to a power-of-two multiple of the trained length. It is fixed when the request
// is admitted (DESIGN.md, "Dynamic NTK").
double RopeBase(const ModelConfig& config, int length_budget);

}  // namespace lssar

#endif  // LSSAR_MODELS_CONFIG_H_
