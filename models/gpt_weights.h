// The tensors of a GPT-2 shaped checkpoint, checked one by one and packed for a backend.
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

struct GptNorm {
  std::unique_ptr<Buffer> weight;  // [width] floats
  std::unique_ptr<Buffer> bias;    // [width] floats
};

struct GptLinear {
  std::unique_ptr<PackedMatrix> weight;  // [out, in]
  std::unique_ptr<Buffer> bias;          // [out] floats
};

struct GptLayer {
  GptNorm attention_norm;   // ln_1
  GptLinear qkv;            // attn.c_attn, [3 width, width]
  GptLinear attention_out;  // attn.c_proj, [width, width]
  GptNorm mlp_norm;         // ln_2
  GptLinear mlp_in;         // mlp.c_fc, [intermediate_size, width]
  GptLinear mlp_out;        // mlp.c_proj, [width, intermediate_size]
};

struct GptWeights {
  std::unique_ptr<PackedMatrix> embedding;  // wte, [vocab, width]
  std::vector<GptLayer> layers;
  GptNorm final_norm;                         // ln_f
  std::unique_ptr<PackedMatrix> untied_head;  // lm_head, [vocab, width]; null: the embedding's
  int64_t num_parameters = 0;
};

// `stored`: how matrices are kept; nullopt: each as the file has it. Norms and biases are fp32.
// Errors  INVALID_ARGUMENT: a tensor missing, surplus, of another dtype or shape (expected and
// found
//         are named), a NaN or an infinity in one (tensor and index), or a value that fp16 cannot
//         hold where `stored` asks for it; RESOURCE_EXHAUSTED: no memory
absl::StatusOr<GptWeights> LoadGptWeights(const TensorFile& file, const ModelConfig& config,
                                          Backend* backend, std::optional<DType> stored);

}  // namespace lssar

#endif  // LSSAR_MODELS_GPT_WEIGHTS_H_
