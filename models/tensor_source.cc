#include "models/tensor_source.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/str_cat.h"

namespace lssar {
namespace {

using Names = ModelConfig::TensorNames;

struct Stem {
  std::string_view ours, theirs;
};

constexpr Stem kLlama[] = {
    {"wte", "embed_tokens"},
    {"ln_f", "norm"},
    {"ln_1", "input_layernorm"},
    {"ln_2", "post_attention_layernorm"},
    {"attn.c_proj", "self_attn.o_proj"},
    {"attn.q_norm", "self_attn.q_norm"},
    {"attn.k_norm", "self_attn.k_norm"},
    {"mlp.c_gate", "mlp.gate_proj"},
    {"mlp.c_fc", "mlp.up_proj"},
    {"mlp.c_proj", "mlp.down_proj"},
};

constexpr Stem kNeox[] = {
    {"wte", "embed_in"},
    {"ln_f", "final_layer_norm"},
    {"ln_1", "input_layernorm"},
    {"ln_2", "post_attention_layernorm"},
    {"attn.c_attn", "attention.query_key_value"},
    {"attn.c_proj", "attention.dense"},
    {"mlp.c_fc", "mlp.dense_h_to_4h"},
    {"mlp.c_proj", "mlp.dense_4h_to_h"},
};

constexpr Stem kBloomStems[] = {
    {"wte", "word_embeddings"},
    {"ln_emb", "word_embeddings_layernorm"},
    {"ln_f", "ln_f"},
    {"ln_1", "input_layernorm"},
    {"ln_2", "post_attention_layernorm"},
    {"attn.c_attn", "self_attention.query_key_value"},
    {"attn.c_proj", "self_attention.dense"},
    {"mlp.c_fc", "mlp.dense_h_to_4h"},
    {"mlp.c_proj", "mlp.dense_4h_to_h"},
};

bool AreOurs(Names names) { return names == Names::kOurs || names == Names::kGpt2; }

// q, k and v of one head lie side by side.
bool AreByHead(Names names) { return names == Names::kGptNeox || names == Names::kBloom; }

std::span<const Stem> StemsOf(Names names) {
  if (names == Names::kLlama) return kLlama;
  if (names == Names::kGptNeox) return kNeox;
  if (names == Names::kBloom) return kBloomStems;
  return {};
}

// The end of a name that is no parameter: a causal mask, or angles.
constexpr std::string_view kBuffers[] = {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                         ".attention.masked_bias", "rotary_emb.inv_freq"};

}  // namespace

TensorSource::TensorSource(const TensorFile& file, const ModelConfig& config)
    : file_(file), config_(config) {
  const auto find_prefix = [&](std::string_view prefix, std::string_view name) {
    if (file.Find(StrCat(prefix, name)) != nullptr) prefix_ = prefix;
  };
  switch (config.tensor_names) {
    case Names::kOurs:
    case Names::kGpt2:
      if (file.Find("wte.weight") == nullptr) prefix_ = "transformer.";
      break;
    case Names::kLlama: find_prefix("model.", "embed_tokens.weight"); break;
    case Names::kGptNeox: find_prefix("gpt_neox.", "embed_in.weight"); break;
    case Names::kBloom: find_prefix("transformer.", "word_embeddings.weight"); break;
  }
}

std::vector<std::string> TensorSource::PartsOf(const std::string& name) const {
  const Names names = config_.tensor_names;
  if (AreOurs(names)) {
    const bool has_prefix = name.starts_with("h.") || name.starts_with("wte.") ||
                            name.starts_with("wpe.") || name.starts_with("ln_");
    return {has_prefix ? prefix_ + name : name};
  }
  if (name == "lm_head.weight") {
    return {names == Names::kGptNeox ? "embed_out.weight" : "lm_head.weight"};
  }
  // "h.3." + stem + ".weight"
  const size_t dot = name.rfind('.');
  std::string layer;
  std::string_view stem = std::string_view(name).substr(0, dot);
  if (name.starts_with("h.")) {
    const size_t end = name.find('.', 2);
    layer = StrCat(names == Names::kBloom ? "h." : "layers.", name.substr(2, end - 2), ".");
    stem.remove_prefix(std::min(end + 1, stem.size()));
  }
  const std::string_view last = std::string_view(name).substr(dot);
  if (names == Names::kLlama && stem == "attn.c_attn") {
    std::vector<std::string> parts;
    for (const char* const part : {"q", "k", "v"}) {
      parts.push_back(StrCat(prefix_, layer, "self_attn.", part, "_proj", last));
    }
    return parts;
  }
  for (const Stem& each : StemsOf(names)) {
    if (each.ours == stem) return {StrCat(prefix_, layer, each.theirs, last)};
  }
  return {name};
}

std::string TensorSource::NameInFile(const std::string& name) const {
  return PartsOf(name).front();
}

const TensorView* TensorSource::Find(const std::string& name) {
  const std::vector<std::string> parts = PartsOf(name);
  used_.insert(parts.begin(), parts.end());
  if (parts.size() > 1) return Join(parts);
  if (AreByHead(config_.tensor_names) && name.find("attn.c_attn.") != name.npos) {
    return SortByKind(parts.front());
  }
  return file_.Find(parts.front());
}

const TensorView* TensorSource::Join(const std::vector<std::string>& parts) {
  view_ = {};
  bytes_.clear();
  std::vector<const TensorView*> tensors;
  bool is_one_type = true;
  for (const std::string& part : parts) {
    const TensorView* const tensor = file_.Find(part);
    if (tensor == nullptr) return nullptr;
    const TensorView& first = tensors.empty() ? *tensor : *tensors.front();
    if (tensor->shape.empty()) return nullptr;
    const bool is_float = tensor->IsFloat() && first.IsFloat();
    if ((tensor->type != first.type && !is_float) || tensor->shape.size() != first.shape.size() ||
        !std::equal(tensor->shape.begin() + 1, tensor->shape.end(), first.shape.begin() + 1)) {
      status_ = absl::InvalidArgumentError(StrCat(file_.Paths().front(), ": tensor \"", part,
                                                  "\" has another type or row than \"",
                                                  parts.front(), "\""));
      return nullptr;
    }
    is_one_type = is_one_type && tensor->type == first.type;
    tensors.push_back(tensor);
  }
  view_ = {.type = tensors.front()->type, .shape = tensors.front()->shape, .bytes = {}};
  view_.shape[0] = 0;
  if (!is_one_type) view_.type = TensorType::kF32;  // holds the values of each
  for (const TensorView* const tensor : tensors) {
    view_.shape[0] += tensor->shape[0];
    if (is_one_type) {
      bytes_.insert(bytes_.end(), tensor->bytes.begin(), tensor->bytes.end());
    } else {
      const std::vector<float> values = tensor->ToFloats();
      const auto bytes = std::as_bytes(std::span(values));
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    file_.Release(*tensor);
  }
  view_.bytes = bytes_;
  return &view_;
}

// GPT-NeoX and BLOOM have the q, k and v of one head side by side; here all heads' q come first.
const TensorView* TensorSource::SortByKind(const std::string& name) {
  const TensorView* const tensor = file_.Find(name);
  if (tensor == nullptr || tensor->shape.empty()) return tensor;
  const auto num_heads = size_t(config_.num_attention_heads), head_dim = size_t(config_.HeadDim());
  if (size_t(tensor->shape[0]) != 3 * num_heads * head_dim) return tensor;  // the shape is an error
  view_ = {.type = tensor->type, .shape = tensor->shape, .bytes = {}};
  bytes_.resize(tensor->bytes.size());
  const size_t num_bytes = tensor->bytes.size() / (3 * num_heads);  // of one head's q, k or v
  for (size_t head = 0; head < num_heads; ++head) {
    for (size_t kind = 0; kind < 3; ++kind) {
      std::memcpy(bytes_.data() + (kind * num_heads + head) * num_bytes,
                  tensor->bytes.data() + (head * 3 + kind) * num_bytes, num_bytes);
    }
  }
  file_.Release(*tensor);
  view_.bytes = bytes_;
  return &view_;
}

void TensorSource::Release(const std::string& name) {
  const std::vector<std::string> parts = PartsOf(name);
  if (parts.size() > 1) return;  // released when they were joined
  if (const TensorView* const tensor = file_.Find(parts.front())) file_.Release(*tensor);
}

std::vector<std::string> TensorSource::Unused() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : file_.Tensors()) {
    const auto is_suffix = [&](std::string_view end) { return name.ends_with(end); };
    const bool is_buffer =
        config_.tensor_names != Names::kOurs && std::ranges::any_of(kBuffers, is_suffix);
    if (!is_buffer && !used_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace lssar
