// Checkpoints of a given shape with random weights, and synthetic tokens, for benches.
#ifndef LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_
#define LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lssar::bench {

struct ModelShape {
  int num_hidden_layers = 12;
  int num_attention_heads = 12;
  int num_kv_heads = 12;
  int hidden_size = 768;
  int vocab_size = 50304;
  int max_position_embeddings = 1024;

  int64_t NumParameters() const;
};

// A tensor with its names in a checkpoint and in llama.cpp's GPT-NeoX files.
struct ShapeTensor {
  std::string name;
  std::string gguf_name;
  std::vector<int64_t> dims;  // [out, in] or [size]
  bool is_norm_weight = false;

  int64_t NumElements() const;
};
std::vector<ShapeTensor> TensorsOf(const ModelShape& shape);

// Values of tensor `index`: uniform with the standard deviation of GPT-2's initialisation (0.02),
// norm weights around 1. A function of the arguments alone.
std::vector<float> RandomValues(const ShapeTensor& tensor, size_t index);

// The token at `position` of synthetic text `salt`. Neighbouring positions are spread over the
// vocabulary, so a prefill reads as many embedding rows as real text does.
int32_t SyntheticToken(int position, int salt, int vocab_size);

// Writes config.json and model.safetensors (F16) to `directory`, which is created if it is missing.
absl::Status WriteRandomCheckpoint(const ModelShape& shape, const std::string& directory);

// The types of a GGUF file's matrices.
enum class GgufMatrices : uint8_t { kF16, kQ8, kQ4 };  // F16, Q8_0, Q4_0

// Writes the same weights as a GGUF file for llama.cpp's "gptneox" (LayerNorm, biases, rotary, GELU
// MLP, softmax attention), its architecture closest to ours. The output matrix is a copy of the
// embedding: llama.cpp cannot tie it there. A token so reads as many bytes as here.
absl::Status WriteRandomGguf(const ModelShape& shape, GgufMatrices matrices,
                             const std::string& path);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_
