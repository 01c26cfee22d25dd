// config.json of a checkpoint, parsed and checked: the description of the model that gpt_weights
// and gpt read.
#ifndef LSSAR_MODELS_CONFIG_H_
#define LSSAR_MODELS_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/feature.h"
#include "kernels/ops.h"

namespace lssar {

// The largest power of the re-weighting.
inline constexpr double kMaxAttentionP = 1000;

// How rotary frequencies are changed for texts beyond the trained length, as transformers does;
// every length and factor is positive. Dynamic NTK changes the base instead (RopeBaseAtLength).
struct RopeScaling {
  enum class Kind : uint8_t { kNone, kLinear, kYarn, kLlama3, kLongRope };
  Kind kind = Kind::kNone;
  double factor = 1;
  double original_length = 0;                        // original_max_position_embeddings
  double attention_factor = 1;                       // of cosines and sines: kYarn, kLongRope
  double beta_fast = 32, beta_slow = 1;              // kYarn
  bool truncate = true;                              // kYarn
  double low_freq_factor = 1, high_freq_factor = 4;  // kLlama3
  std::vector<double> short_factors, long_factors;   // kLongRope, [RotaryDims() / 2]
};

// The description of a GPT. A block computes
//   x += attention_residual_scale * out_norm(attention(norm(x)))
//   x += mlp_residual_scale * out_norm(mlp(norm(x)))
// where out_norm is the identity unless norm_position is kSandwich, and where both lines read the
// same x if parallel_residual.
struct ModelConfig {
  // kPlain: activation(x W_in) W_out. kGated: (activation(x W_gate) * (x W_in)) W_out: SwiGLU with
  // kSilu, GeGLU with a GELU.
  enum class MlpKind : uint8_t { kPlain, kGated };
  // kPre: norms before attention and MLP. kSandwich: also behind them, before the residual.
  enum class NormPosition : uint8_t { kPre, kSandwich };

  // The norm of each head's q and k.
  struct QkNorm {
    NormKind kind = NormKind::kNone;
    bool after_rotary = false;
    bool has_weight = false;
    bool has_bias = false;
    float epsilon = 1e-5f;
  };

  // kRotary: rotations of q and k. kNone: none (NoPE). kLearned: an embedding of the position is
  // added to the token's. kAlibi: scores lose by distance (AttentionSpec::has_alibi).
  enum class Positions : uint8_t { kRotary, kNone, kLearned, kAlibi };
  // The names of the tensors in the file (tensor_source.h). kGpt2: ours, beside masks.
  enum class TensorNames : uint8_t { kOurs, kGpt2, kLlama, kGptNeox, kBloom };

  int vocab_size = 0;
  int unpadded_vocab_size = 0;  // ids from here on are never sampled; 0: vocab_size
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_kv_heads = 0;  // divides num_attention_heads; 0: num_attention_heads
  int hidden_size = 0;
  int head_dim = 0;  // 0: hidden_size / num_attention_heads
  int intermediate_size = 0;
  int max_position_embeddings = 0;  // n_positions, the trained length in tokens

  // Every norm of a hidden state is of this kind.
  NormKind norm_kind = NormKind::kLayerNorm;
  float layer_norm_epsilon = 1e-5f;
  bool norm_weight = true;
  bool norm_bias = true;
  NormPosition norm_position = NormPosition::kPre;
  bool embedding_norm = false;

  MlpKind mlp_kind = MlpKind::kPlain;
  Activation activation = Activation::kGeluTanh;
  bool attention_bias = true;      // of the QKV projection
  bool attention_out_bias = true;  // of attention's output projection
  bool mlp_bias = true;            // of the projections into the MLP
  bool mlp_out_bias = true;

  bool parallel_residual = false;
  float attention_residual_scale = 1;
  float mlp_residual_scale = 1;

  std::vector<AttentionSpec> attention;  // [num_hidden_layers]
  QkNorm qk_norm;
  Positions positions = Positions::kRotary;
  std::vector<bool> is_nope_layer;  // [num_hidden_layers]: nothing rotates there; empty: no layer
  double rope_theta = 10000.0;
  RopeLayout rope_layout = RopeLayout::kHalfSplit;
  int rotary_dims = 0;                       // elements of a head that rotate; 0: head_dim
  std::optional<double> dynamic_ntk_factor;  // rope_scaling {"type": "dynamic", "factor": f}
  RopeScaling rope_scaling;                  // the other types

  bool tie_word_embeddings = true;
  float final_logit_softcapping = 0;  // 0: none
  TensorNames tensor_names = TensorNames::kOurs;
  bool conv1d_layout = false;  // projections are stored as [in, out]
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  // Further ids that end a text: the rest of a list in config.json, and generation_config.json's.
  std::vector<int32_t> other_eos_ids;

  // Adds the ids of "eos_token_id" of a JSON object, one or a list, that are not there yet; the
  // first becomes eos_id if there is none.
  // Errors  INVALID_ARGUMENT, starting with `source`: an id out of [0, NumTokenIds())
  absl::Status AddEosIds(std::string_view text, std::string_view source);
  bool IsEos(int32_t id) const;
  // eos_id and the others.
  std::vector<int32_t> EosIds() const;

  int HeadDim() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }
  int RotaryDims() const { return rotary_dims > 0 ? rotary_dims : HeadDim(); }
  int NumKvHeads() const { return num_kv_heads > 0 ? num_kv_heads : num_attention_heads; }
  // Inputs of attention's output projection: every head's output.
  int AttentionSize() const { return num_attention_heads * HeadDim(); }
  // Outputs of the QKV projection: every head's q, then every K/V head's k, then its v.
  int QkvSize() const { return (num_attention_heads + 2 * NumKvHeads()) * HeadDim(); }
  // The longest text in tokens: learned positions end there. nullopt: any length.
  std::optional<int> MaxLength() const {
    return positions == Positions::kLearned ? std::optional(max_position_embeddings) : std::nullopt;
  }
  // Ids that may be sampled: [0, NumTokenIds()).
  int NumTokenIds() const { return unpadded_vocab_size > 0 ? unpadded_vocab_size : vocab_size; }

  // The layers' kinds of attention, each once, in order of layers: "lssar", "lssar, softmax".
  std::string AttentionNames() const;
  // The p of the layers that re-weight. nullopt: none does, or they differ.
  std::optional<double> AttentionP() const;
  // What the model asks of a backend (CheckFeatures), besides its attention.
  std::vector<Feature> Features() const;
};

// Parses the text of a config.json. `source` (its path) starts every error message.
// Errors  INVALID_ARGUMENT naming field, value and limit: not JSON; a field is missing, of another
//         type or out of range; no attention object, or another field that has no default (the
//         message says what to add); a value that no backend computes; an unknown field that is not
//         in "ignored_fields". What one backend does not compute is an error of Gpt::Create
absl::StatusOr<ModelConfig> ParseConfig(std::string_view json, std::string_view source);

// Errors  INVALID_ARGUMENT: the model has learned positions for fewer tokens than `max_model_len`
absl::Status CheckMaxLength(const ModelConfig& config, int max_model_len);

// The rotary base for a sequence of exactly `length` tokens: rope_theta up to the trained length
// L0; beyond it, with dynamic NTK, theta * ((f L / L0) - (f - 1))^(r / (r - 2)) at L = length,
// r = RotaryDims(). longrope: -rope_theta beyond its original length, which tells its long factors
// from its short ones (FillRopeFrequencies): like a base, they hold for a whole sequence.
// Source  arXiv 2501.13428v1
double RopeBaseAtLength(const ModelConfig& config, int length);

// The rotary base of a sequence of which up to `length_budget` tokens may be read: RopeBaseAtLength
// of the budget rounded up to a power-of-two multiple of the trained length. It is fixed when the
// request is admitted (DESIGN.md, "Dynamic NTK").
double RopeBase(const ModelConfig& config, int length_budget);

// The longest length budget that has the rotary base of `length_budget`; the largest int, if every
// longer one has it.
// Requires  length_budget > 0
int LongestAtRopeBase(const ModelConfig& config, int length_budget);

}  // namespace lssar

#endif  // LSSAR_MODELS_CONFIG_H_
