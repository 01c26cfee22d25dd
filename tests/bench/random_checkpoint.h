// Checkpoints of a given shape with random weights, and synthetic tokens, for benches.
#ifndef LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_
#define LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <string_view>
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
  // 0: the output matrix is the embedding. Otherwise the greedy next token after token t is
  // NextToken(*this, t): the model copies a passage that is one cycle of tokens, however little the
  // layers know. The embeddings outweigh what the layers add, and the output matrix is their rows,
  // each moved to its next token.
  int cycle = 0;

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

// The token after `token` in a shape with `cycle` > 0: ids count up within blocks of `cycle` ids
// and start again at the block's first id.
int32_t NextToken(const ModelShape& shape, int32_t token);

// Values of tensor `index` of TensorsOf: uniform with the standard deviation of GPT-2's
// initialisation (0.02), norm weights around 1. A function of the arguments alone.
std::vector<float> ValuesOf(const ModelShape& shape, const ShapeTensor& tensor, size_t index);

// The token at `position` of synthetic text `salt`. Neighbouring positions are spread over the
// vocabulary, so a prefill reads as many embedding rows as real text does.
int32_t SyntheticToken(int position, int salt, int vocab_size);

// Writes config.json and model.safetensors (F16) to `directory`, which is created if it is missing.
absl::Status WriteRandomCheckpoint(const ModelShape& shape, const std::string& directory);

// The types of a GGUF file's matrices.
enum class GgufMatrices : uint8_t { kF16, kQ8, kQ4 };
const char* NameOf(GgufMatrices matrices);  // "F16", "Q8_0", "Q4_0"
// The type with as many bits as one of our weight types; F16 beside fp32 and bf16.
GgufMatrices MatricesOf(std::string_view dtype);

// Writes the same weights as a GGUF file for llama.cpp's "gptneox" (LayerNorm, biases, rotary, GELU
// MLP, softmax attention), its architecture closest to ours. A tied output matrix is written as a
// copy of the embedding: llama.cpp cannot tie it there. A token so reads as many bytes as here.
// The tokenizer is a list of words: token t is GgufWord(t).
absl::Status WriteRandomGguf(const ModelShape& shape, GgufMatrices matrices,
                             const std::string& path);

// The text of a token of WriteRandomGguf's files. No word is the prefix of another one.
std::string GgufWord(int32_t token);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_RANDOM_CHECKPOINT_H_
