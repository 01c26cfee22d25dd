// Checkpoints of a given shape with random weights: for benches, where only the shape counts.
#ifndef LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_
#define LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lssar::bench {

struct ModelShape {
  int num_layers = 12;
  int num_heads = 12;
  int hidden_size = 768;
  int vocab_size = 50304;
  int max_position_embeddings = 1024;

  int64_t NumParameters() const;
};

// One tensor of the shape: its name in a checkpoint and in llama.cpp's GPT-NeoX files.
struct ShapeTensor {
  std::string name;
  std::string gguf_name;
  std::vector<int64_t> dims;  // [out, in] or [hidden_size]
  bool is_norm_weight = false;

  int64_t NumElements() const;
};
std::vector<ShapeTensor> TensorsOf(const ModelShape& shape);

// Values of tensor `index`: uniform with the standard deviation of GPT-2's initialisation (0.02),
// norm weights around 1. The same for every caller.
std::vector<float> RandomValues(const ShapeTensor& tensor, size_t index);

// Writes config.json and model.safetensors (F16) into `directory`, which is made if it is missing.
absl::Status WriteRandomCheckpoint(const ModelShape& shape, const std::string& directory);

// The same weights as a GGUF file of llama.cpp's "gptneox" (LayerNorm, biases, rotary, GELU MLP:
// the architecture there nearest to ours, with softmax attention), F16 or Q8_0. Its output matrix
// is a copy of the embedding: llama.cpp cannot tie it there, and reads as many bytes a token as we
// do.
absl::Status WriteRandomGguf(const ModelShape& shape, bool q8_0, const std::string& path);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_
