#include "tests/bench/random_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/str_cat.h"
#include "kernels/float_bits.h"

namespace lssar::bench {
namespace {

constexpr char kEmbedding[] = "transformer.wte.weight";
constexpr char kHead[] = "lm_head.weight";
// Embeddings of a shape with a cycle have a standard deviation of 1, where the layers together add
// 1 to 2. A token's logit is then some 20 standard deviations above the others.
constexpr float kEmbeddingScale = 50;

uint64_t SplitMix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<uint16_t> ToHalves(const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), F16FromFloat);
  return halves;
}

// GGUF's Q8_0: blocks of 32 values, an fp16 scale and then 32 signed bytes.
std::vector<char> ToQ8Blocks(const std::vector<float>& values) {
  std::vector<char> blocks;
  blocks.reserve(values.size() / 32 * 34);
  for (size_t i = 0; i < values.size(); i += 32) {
    float largest = 0;
    for (size_t j = i; j < i + 32; ++j) largest = std::max(largest, std::abs(values[j]));
    const float scale = largest / 127;
    const uint16_t bits = F16FromFloat(scale);
    blocks.insert(blocks.end(), reinterpret_cast<const char*>(&bits),
                  reinterpret_cast<const char*>(&bits) + 2);
    for (size_t j = i; j < i + 32; ++j) {
      blocks.push_back(char(scale > 0 ? std::lround(values[j] / scale) : 0));
    }
  }
  return blocks;
}

// GGUF's Q4_0: blocks of 32 values, an fp16 scale and then 16 bytes: value j + 8 in the low half of
// byte j, value 16 + j in the high half. The value of largest magnitude becomes -8.
std::vector<char> ToQ4Blocks(const std::vector<float>& values) {
  std::vector<char> blocks;
  blocks.reserve(values.size() / 32 * 18);
  for (size_t i = 0; i < values.size(); i += 32) {
    float largest = 0;
    for (size_t j = i; j < i + 32; ++j) {
      if (std::abs(values[j]) > std::abs(largest)) largest = values[j];
    }
    const float scale = largest / -8;
    const uint16_t bits = F16FromFloat(scale);
    blocks.insert(blocks.end(), reinterpret_cast<const char*>(&bits),
                  reinterpret_cast<const char*>(&bits) + 2);
    const auto steps = [&](size_t j) {
      return scale == 0 ? 8 : std::clamp(int(std::lround(values[j] / scale)) + 8, 0, 15);
    };
    for (size_t j = i; j < i + 16; ++j) blocks.push_back(char(steps(j) | steps(j + 16) << 4));
  }
  return blocks;
}

// The codes of a matrix type: as a tensor's type and as general.file_type.
struct GgufTypeCodes {
  uint32_t tensor;
  uint32_t file;
};
constexpr GgufTypeCodes CodesOf(GgufMatrices matrices) {
  switch (matrices) {
    case GgufMatrices::kF16: return {1, 1};
    case GgufMatrices::kQ8: return {8, 7};
    case GgufMatrices::kQ4: return {2, 2};
  }
  return {};
}

int64_t MatrixBytes(GgufMatrices matrices, int64_t num_elements) {
  switch (matrices) {
    case GgufMatrices::kF16: return num_elements * 2;
    case GgufMatrices::kQ8: return num_elements / 32 * 34;
    case GgufMatrices::kQ4: return num_elements / 32 * 18;
  }
  return 0;
}

template <typename T>
void Put(std::ofstream& out, const T& value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutString(std::ofstream& out, std::string_view text) {
  Put(out, uint64_t(text.size()));
  out.write(text.data(), std::streamsize(text.size()));
}

// Value type codes of GGUF v3.
enum GgufType : uint32_t { kUint32 = 4, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

void PutKey(std::ofstream& out, std::string_view key, uint32_t value) {
  PutString(out, key), Put(out, uint32_t{kUint32}), Put(out, value);
}

void PutGgufKeys(std::ofstream& out, const ModelShape& shape, GgufMatrices matrices) {
  const auto put_text = [&](std::string_view key, std::string_view value) {
    PutString(out, key), Put(out, uint32_t{kString}), PutString(out, value);
  };
  Put(out, uint64_t{14});
  put_text("general.architecture", "gptneox");
  put_text("general.name", "random");
  // RWKV's tokenizer looks words up: the longest that matches. It must know a line break.
  put_text("tokenizer.ggml.model", "rwkv");
  PutString(out, "tokenizer.ggml.tokens"), Put(out, uint32_t{kArray}), Put(out, uint32_t{kString}),
      Put(out, uint64_t(shape.vocab_size));
  for (int32_t token = 0; token + 1 < shape.vocab_size; ++token) PutString(out, GgufWord(token));
  PutString(out, "\\n");
  PutKey(out, "general.file_type", CodesOf(matrices).file);
  PutKey(out, "gptneox.context_length", 32768);
  PutKey(out, "gptneox.embedding_length", uint32_t(shape.hidden_size));
  PutKey(out, "gptneox.block_count", uint32_t(shape.num_hidden_layers));
  PutKey(out, "gptneox.feed_forward_length", uint32_t(4 * shape.hidden_size));
  PutKey(out, "gptneox.rope.dimension_count",
         uint32_t(shape.hidden_size / shape.num_attention_heads));
  PutKey(out, "gptneox.attention.head_count", uint32_t(shape.num_attention_heads));
  PutKey(out, "gptneox.vocab_size", uint32_t(shape.vocab_size));
  PutString(out, "gptneox.use_parallel_residual"), Put(out, uint32_t{kBool}), Put(out, uint8_t{0});
  PutString(out, "gptneox.attention.layer_norm_epsilon"), Put(out, uint32_t{kFloat32}),
      Put(out, 1e-5f);
}

std::vector<float> RandomValues(const ShapeTensor& tensor, size_t index) {
  std::vector<float> values(size_t(tensor.NumElements()));
  uint64_t state = index * 0x5851f42d4c957f2du + 1;
  const float centre = tensor.is_norm_weight ? 1.0f : 0.0f;
  const float half_range = 0.02f * std::sqrt(3.0f);
  for (float& value : values) {
    const float unit = float(SplitMix(state) >> 40) * 0x1p-23f - 1.0f;  // [-1, 1)
    value = centre + half_range * unit;
  }
  return values;
}

}  // namespace

int64_t ShapeTensor::NumElements() const {
  int64_t num_elements = 1;
  for (const int64_t dim : dims) num_elements *= dim;
  return num_elements;
}

int64_t ModelShape::NumParameters() const {
  int64_t sum = 0;
  for (const ShapeTensor& tensor : TensorsOf(*this)) sum += tensor.NumElements();
  return sum;
}

std::vector<ShapeTensor> TensorsOf(const ModelShape& shape) {
  const int64_t hidden_size = shape.hidden_size;
  std::vector<ShapeTensor> tensors = {
      {kEmbedding, "token_embd.weight", {shape.vocab_size, hidden_size}}};
  const auto add = [&](const std::string& prefix, const std::string& name,
                       const std::string& gguf_prefix, const std::string& gguf_name, int64_t out,
                       int64_t in) {
    const bool is_norm = in == 0;
    tensors.push_back({prefix + name + ".weight", gguf_prefix + gguf_name + ".weight",
                       is_norm ? std::vector<int64_t>{out} : std::vector<int64_t>{out, in},
                       is_norm});
    tensors.push_back({prefix + name + ".bias", gguf_prefix + gguf_name + ".bias", {out}});
  };
  for (int layer = 0; layer < shape.num_hidden_layers; ++layer) {
    const std::string ours = StrCat("transformer.h.", layer, "."),
                      gguf = StrCat("blk.", layer, ".");
    add(ours, "ln_1", gguf, "attn_norm", hidden_size, 0);
    const int64_t head_dim = hidden_size / shape.num_attention_heads;
    add(ours, "attn.c_attn", gguf, "attn_qkv", hidden_size + 2 * shape.num_kv_heads * head_dim,
        hidden_size);
    add(ours, "attn.c_proj", gguf, "attn_output", hidden_size, hidden_size);
    add(ours, "ln_2", gguf, "ffn_norm", hidden_size, 0);
    add(ours, "mlp.c_fc", gguf, "ffn_up", 4 * hidden_size, hidden_size);
    add(ours, "mlp.c_proj", gguf, "ffn_down", hidden_size, 4 * hidden_size);
  }
  add("transformer.", "ln_f", "", "output_norm", hidden_size, 0);
  if (shape.cycle > 0) tensors.push_back({kHead, "output.weight", {shape.vocab_size, hidden_size}});
  return tensors;
}

int32_t NextToken(const ModelShape& shape, int32_t token) {
  const int32_t first = token / shape.cycle * shape.cycle;
  return first + (token - first + 1) % std::min(shape.cycle, shape.vocab_size - first);
}

std::vector<float> ValuesOf(const ModelShape& shape, const ShapeTensor& tensor, size_t index) {
  if (shape.cycle > 0 && tensor.name == kEmbedding) {
    std::vector<float> values = RandomValues(tensor, index);
    for (float& value : values) value *= kEmbeddingScale;
    return values;
  }
  if (shape.cycle > 0 && tensor.name == kHead) {
    const std::vector<float> embedding = RandomValues(tensor, 0);
    std::vector<float> values(embedding.size());
    for (int32_t token = 0; token < shape.vocab_size; ++token) {
      std::copy_n(embedding.begin() + int64_t{token} * shape.hidden_size, shape.hidden_size,
                  values.begin() + int64_t{NextToken(shape, token)} * shape.hidden_size);
    }
    return values;
  }
  return RandomValues(tensor, index);
}

const char* NameOf(GgufMatrices matrices) {
  constexpr const char* kNames[] = {"F16", "Q8_0", "Q4_0"};
  return kNames[size_t(matrices)];
}

GgufMatrices MatricesOf(std::string_view dtype) {
  if (dtype == "int8") return GgufMatrices::kQ8;
  return dtype == "int4" ? GgufMatrices::kQ4 : GgufMatrices::kF16;
}

std::string GgufWord(int32_t token) { return StrCat("<", token, ">"); }

int32_t SyntheticToken(int position, int salt, int vocab_size) {
  return int32_t((uint64_t(position) * 7919 + uint64_t(salt) * 104729) % uint64_t(vocab_size));
}

absl::Status WriteRandomCheckpoint(const ModelShape& shape, const std::string& directory) {
  std::filesystem::create_directories(directory);
  const nlohmann::json config = {{"model_type", "lssar_gpt"},
                                 {"vocab_size", shape.vocab_size},
                                 {"n_layer", shape.num_hidden_layers},
                                 {"n_head", shape.num_attention_heads},
                                 {"num_key_value_heads", shape.num_kv_heads},
                                 {"n_embd", shape.hidden_size},
                                 {"n_inner", 4 * shape.hidden_size},
                                 {"n_positions", shape.max_position_embeddings},
                                 {"activation_function", "gelu_new"},
                                 {"layer_norm_epsilon", 1e-5},
                                 {"rope_theta", 10000.0},
                                 {"rope_scaling", nullptr},
                                 {"tie_word_embeddings", shape.cycle == 0},
                                 {"attention", {{"kind", "lssar"}, {"p", 15}}}};
  std::ofstream(directory + "/config.json") << config.dump(2) << "\n";

  const std::vector<ShapeTensor> tensors = TensorsOf(shape);
  nlohmann::json header;
  int64_t offset = 0;
  for (const ShapeTensor& tensor : tensors) {
    const int64_t end = offset + 2 * tensor.NumElements();
    header[tensor.name] = {
        {"dtype", "F16"}, {"shape", tensor.dims}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream out(directory + "/model.safetensors", std::ios::binary);
  PutString(out, text);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<uint16_t> halves = ToHalves(ValuesOf(shape, tensors[i], i));
    out.write(reinterpret_cast<const char*>(halves.data()), std::streamsize(halves.size() * 2));
  }
  out.flush();
  if (!out) return absl::InternalError(StrCat(directory, "/model.safetensors: write failed"));
  return absl::OkStatus();
}

absl::Status WriteRandomGguf(const ModelShape& shape, GgufMatrices matrices,
                             const std::string& path) {
  std::vector<ShapeTensor> tensors = TensorsOf(shape);
  const size_t num_own = tensors.size();
  if (shape.cycle == 0) {
    tensors.push_back(tensors.front());
    tensors.back().gguf_name = "output.weight";
  }

  std::ofstream out(path, std::ios::binary);
  out.write("GGUF", 4), Put(out, uint32_t{3}), Put(out, uint64_t(tensors.size()));
  PutGgufKeys(out, shape, matrices);
  const auto num_bytes = [&](const ShapeTensor& t) {
    if (t.dims.size() == 1) return t.NumElements() * 4;
    return MatrixBytes(matrices, t.NumElements());
  };
  const auto aligned = [](int64_t n) { return (n + 31) / 32 * 32; };
  int64_t offset = 0;
  for (const ShapeTensor& tensor : tensors) {
    PutString(out, tensor.gguf_name), Put(out, uint32_t(tensor.dims.size()));
    for (auto dim = tensor.dims.rbegin(); dim != tensor.dims.rend(); ++dim)
      Put(out, uint64_t(*dim));
    Put(out, tensor.dims.size() == 1 ? uint32_t{0} : CodesOf(matrices).tensor);
    Put(out, uint64_t(offset));
    offset += aligned(num_bytes(tensor));
  }
  const auto pad_to = [&](int64_t position) {
    while (out.tellp() < position) out.put('\0');
  };
  pad_to(aligned(out.tellp()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<float> values = ValuesOf(shape, tensors[i], i < num_own ? i : 0);
    if (tensors[i].dims.size() == 1) {
      out.write(reinterpret_cast<const char*>(values.data()), std::streamsize(values.size() * 4));
    } else if (matrices != GgufMatrices::kF16) {
      const std::vector<char> blocks =
          matrices == GgufMatrices::kQ8 ? ToQ8Blocks(values) : ToQ4Blocks(values);
      out.write(blocks.data(), std::streamsize(blocks.size()));
    } else {
      const std::vector<uint16_t> halves = ToHalves(values);
      out.write(reinterpret_cast<const char*>(halves.data()), std::streamsize(halves.size() * 2));
    }
    pad_to(aligned(out.tellp()));
  }
  out.flush();
  if (!out) return absl::InternalError(StrCat(path, ": write failed"));
  return absl::OkStatus();
}

}  // namespace lssar::bench
