// The tensors of a GPT checkpoint, each checked and packed for a backend.
#ifndef LSSAR_MODELS_GPT_WEIGHTS_H_
#define LSSAR_MODELS_GPT_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/config.h"
#include "models/safetensors.h"

namespace lssar {

// Null where the checkpoint has none.
struct GptNorm {
  std::unique_ptr<Buffer> weight;  // [size] floats
  std::unique_ptr<Buffer> bias;    // [size] floats
};

struct GptLinear {
  std::unique_ptr<PackedMatrix> weight;  // [out, in]
  std::unique_ptr<Buffer> bias;          // [out] floats; null: none
};

// Tensors that the config does not ask for are null.
struct GptLayer {
  GptNorm attention_norm;       // ln_1, [hidden_size]
  GptLinear qkv;                // attn.c_attn, [QkvSize(), hidden_size]
  GptNorm q_norm, k_norm;       // attn.q_norm, attn.k_norm, [head_dim]
  GptLinear attention_out;      // attn.c_proj, [hidden_size, AttentionSize()]
  GptNorm attention_post_norm;  // ln_1_post
  GptNorm mlp_norm;             // ln_2
  GptLinear mlp_gate;           // mlp.c_gate, [intermediate_size, hidden_size]
  GptLinear mlp_in;             // mlp.c_fc, [intermediate_size, hidden_size]
  GptLinear mlp_out;            // mlp.c_proj, [hidden_size, intermediate_size]
  GptNorm mlp_post_norm;        // ln_2_post
};

// Maps hidden states to the outputs of a regression model, on the host.
struct GptRegressionHead {
  std::vector<float> weight;  // head.weight, [out, hidden_size]
  std::vector<float> bias;    // head.bias, [out]; zeros if the checkpoint has none
};

struct GptWeights {
  std::unique_ptr<PackedMatrix> embedding;  // wte, [vocab, hidden_size]
  std::unique_ptr<Buffer> positions;        // wpe, [n_positions, hidden_size] floats; null: none
  GptNorm embedding_norm;                   // ln_emb
  std::vector<GptLayer> layers;
  GptNorm final_norm;                         // ln_f
  std::unique_ptr<PackedMatrix> untied_head;  // lm_head, [vocab, hidden_size]; null: tied
  GptRegressionHead regression_head;          // empty: none
  int64_t num_parameters = 0;

  // The type of fewest bits among the matrices; the embedding's if others have as many.
  DType NarrowestType() const;
};

// Bytes of the matrices in memory, at least: without padding and scales. dtype: as below.
int64_t LeastBytes(const TensorFile& file, std::optional<DType> dtype);

// `dtype`: the element type of the packed matrices; nullopt: each as the file has it. Norms and
// biases are fp32.
// Errors  INVALID_ARGUMENT: a tensor is missing, unexpected, of another dtype or shape (the message
//         names what was expected and what was found), holds a NaN or an infinity (tensor and
//         index), or holds a value beyond fp16 where `dtype` asks for it; UNIMPLEMENTED: the
//         backend does not compute `dtype`; RESOURCE_EXHAUSTED: no memory; if the device has less
//         free than the matrices need, before any of them is loaded
absl::StatusOr<GptWeights> LoadGptWeights(const TensorFile& file, const ModelConfig& config,
                                          Backend* backend, std::optional<DType> dtype);

}  // namespace lssar

#endif  // LSSAR_MODELS_GPT_WEIGHTS_H_
