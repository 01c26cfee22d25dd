// config.json of Hugging Face's transformers, under this project's names.
#ifndef LSSAR_MODELS_HF_CONFIG_H_
#define LSSAR_MODELS_HF_CONFIG_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "models/json_fields.h"

namespace lssar {

// True if `config` has a model_type of transformers and no `attention`, so that it is no
// config.json of this project.
bool IsHuggingFaceConfig(const nlohmann::json& config);

// Errors  INVALID_ARGUMENT: `config` is of transformers, by its fields, and of no family that is
//         computed; the message lists those
absl::Status CheckModelType(const nlohmann::json& config, std::string_view source);

// The same model in this project's fields, with softmax attention, which is what transformers
// computes, and "tensor_names", which LoadGptWeights maps. Families: llama, mistral, qwen2, qwen3,
// smollm3, gpt_neox, gpt2, bloom.
// Errors  INVALID_ARGUMENT, starting with `source`: a value that is not computed; all unknown
//         fields in one error, with what to do. ParseConfig checks types and ranges.
absl::StatusOr<nlohmann::json> FromHuggingFaceConfig(const nlohmann::json& config,
                                                     std::string_view source);

}  // namespace lssar

#endif  // LSSAR_MODELS_HF_CONFIG_H_
