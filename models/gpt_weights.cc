#include "models/gpt_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/float_bits.h"
#include "kernels/quantize.h"
#include "models/tensor_source.h"

namespace lssar {
namespace {

// The smallest magnitude that rounds to infinity in fp16.
constexpr float kHalfOverflow = 65520.0f;

std::string Show(const std::vector<int64_t>& shape) { return StrCat("[", StrJoin(shape), "]"); }

std::optional<DType> FloatType(TensorType type) {
  switch (type) {
    case TensorType::kF32: return DType::kF32;
    case TensorType::kF16: return DType::kF16;
    case TensorType::kBF16: return DType::kBF16;
    default: return std::nullopt;
  }
}

// The first element whose exponent bits are all ones: a NaN or an infinity.
template <typename Bits>
std::optional<size_t> FirstWithExponent(std::span<const std::byte> bytes, Bits all_ones) {
  for (size_t i = 0; i < bytes.size() / sizeof(Bits); ++i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    if ((bits & all_ones) == all_ones) return i;
  }
  return std::nullopt;
}

std::optional<size_t> FirstNonFinite(const TensorView& tensor) {
  switch (tensor.type) {
    case TensorType::kF32: return FirstWithExponent<uint32_t>(tensor.bytes, 0x7F800000u);
    case TensorType::kF16: return FirstWithExponent<uint16_t>(tensor.bytes, 0x7C00u);
    case TensorType::kBF16: return FirstWithExponent<uint16_t>(tensor.bytes, 0x7F80u);
    default: return std::nullopt;
  }
}

// "[3, 17]" of element `index`.
std::string Coordinates(std::vector<int64_t> shape, size_t index) {
  for (size_t i = shape.size(); i-- > 0;) {
    const int64_t extent = shape[i];
    shape[i] = int64_t(index) % extent;
    index /= size_t(extent);
  }
  return Show(shape);
}

constexpr int64_t kMaxHeadOutputs = 65536;

// Keeps the first error: load everything, then check status() once.
class Loader {
 public:
  Loader(const TensorFile& file, const ModelConfig& config, Backend* backend,
         std::optional<DType> dtype)
      : file_(file), config_(config), backend_(backend), dtype_(dtype), source_(file, config) {
    FindLayout();
  }

  const absl::Status& status() const { return status_; }
  int64_t NumParameters() const { return num_parameters_; }

  GptLayer LoadLayer(int index) {
    const std::string prefix = StrCat("h.", index, ".");
    const ModelConfig& c = config_;
    const bool is_sandwich = c.norm_position == ModelConfig::NormPosition::kSandwich;
    GptLayer layer;
    layer.attention_norm = LoadNorm(prefix + "ln_1");
    layer.qkv = LoadLinear(prefix + "attn.c_attn", c.QkvSize(), c.hidden_size, c.attention_bias);
    if (c.qk_norm.kind != NormKind::kNone) {
      layer.q_norm = LoadHeadNorm(prefix + "attn.q_norm");
      layer.k_norm = LoadHeadNorm(prefix + "attn.k_norm");
    }
    layer.attention_out =
        LoadLinear(prefix + "attn.c_proj", c.hidden_size, c.AttentionSize(), c.attention_out_bias);
    if (is_sandwich) layer.attention_post_norm = LoadNorm(prefix + "ln_1_post");
    layer.mlp_norm = LoadNorm(prefix + "ln_2");
    if (c.mlp_kind == ModelConfig::MlpKind::kGated) {
      layer.mlp_gate =
          LoadLinear(prefix + "mlp.c_gate", c.intermediate_size, c.hidden_size, c.mlp_bias);
    }
    layer.mlp_in = LoadLinear(prefix + "mlp.c_fc", c.intermediate_size, c.hidden_size, c.mlp_bias);
    layer.mlp_out =
        LoadLinear(prefix + "mlp.c_proj", c.hidden_size, c.intermediate_size, c.mlp_out_bias);
    if (is_sandwich) layer.mlp_post_norm = LoadNorm(prefix + "ln_2_post");
    return layer;
  }

  GptNorm LoadFinalNorm() { return LoadNorm("ln_f"); }

  GptNorm LoadEmbeddingNorm() { return config_.embedding_norm ? LoadNorm("ln_emb") : GptNorm{}; }

  std::unique_ptr<PackedMatrix> LoadEmbedding() {
    return LoadMatrix("wte.weight", config_.vocab_size, config_.hidden_size, false);
  }

  // fp32 whatever the type of the matrices. Null where positions are not learned.
  std::unique_ptr<Buffer> LoadPositions() {
    const std::optional<int> length = config_.MaxLength();
    return length ? LoadFloats("wpe.weight", {*length, config_.hidden_size}) : nullptr;
  }

  // Null where the logits use the embedding.
  std::unique_ptr<PackedMatrix> LoadUntiedHead() {
    const std::string kHead = "lm_head.weight";
    if (!config_.tie_word_embeddings) {
      return LoadMatrix(kHead, config_.vocab_size, config_.hidden_size, false);
    }
    const TensorView* head = source_.Find(kHead);
    if (head == nullptr) return nullptr;
    const TensorView* embedding = source_.Find("wte.weight");
    if (embedding == nullptr) return nullptr;
    if (head->type != embedding->type || head->shape != embedding->shape ||
        std::memcmp(head->bytes.data(), embedding->bytes.data(), head->bytes.size()) != 0) {
      Fail(kHead, StrCat("differs from ", source_.NameInFile("wte.weight"),
                         ", but config.json ties them (tie_word_embeddings)"));
    }
    source_.Release(kHead);
    source_.Release("wte.weight");
    return nullptr;
  }

  // Empty if the checkpoint has no regression head.
  GptRegressionHead LoadRegressionHead() {
    const std::string weight_name = "head.weight", bias_name = "head.bias";
    const TensorView* weight = source_.Find(weight_name);
    if (weight == nullptr) return {};
    if (weight->shape.size() != 2 || weight->shape[0] < 1 || weight->shape[0] > kMaxHeadOutputs) {
      Fail(weight_name, StrCat("has shape ", Show(weight->shape), ", must be [out, ",
                               config_.hidden_size, "] with out in [1, ", kMaxHeadOutputs, "]"));
      return {};
    }
    const int64_t num_outputs = weight->shape[0];
    weight = Find(weight_name, {num_outputs, config_.hidden_size});
    if (weight == nullptr) return {};
    GptRegressionHead head{.weight = weight->ToFloats(),
                           .bias = std::vector<float>(size_t(num_outputs))};
    if (source_.Find(bias_name) == nullptr) return head;
    const TensorView* bias = Find(bias_name, {num_outputs});
    if (bias != nullptr) head.bias = bias->ToFloats();
    return head;
  }

  void RejectUnexpected() {
    for (const std::string& name : source_.Unused()) {
      const TensorView& tensor = *file_.Find(name);
      FailAt(name, StrCat("is unexpected: ", NameOf(tensor.type), " ", Show(tensor.shape),
                          " is no part of the GPT that config.json describes, with ",
                          config_.num_hidden_layers, " layers (n_layer)"));
    }
  }

 private:
  void Fail(const std::string& name, std::string_view problem) {
    FailAt(source_.NameInFile(name), problem);
  }

  // `name`: in the file.
  void FailAt(std::string_view name, std::string_view problem) {
    status_.Update(source_.status());
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        StrCat(file_.Paths().front(), ": tensor \"", name, "\" ", problem));
  }

  // Unless the QKV projection is square, its shape tells Conv1D's [in, out] from nn.Linear's
  // [out, in].
  void FindLayout() {
    const std::string name = "h.0.attn.c_attn.weight";
    const TensorView* qkv = source_.Find(name);
    const std::vector<int64_t> linear{config_.QkvSize(), config_.hidden_size};
    const std::vector<int64_t> conv1d{config_.hidden_size, config_.QkvSize()};
    const bool shape_tells = qkv != nullptr && linear != conv1d;
    transposed_ = config_.conv1d_layout || (shape_tells && qkv->shape == conv1d);
    if (config_.conv1d_layout && shape_tells && qkv->shape == linear) {
      Fail(name, StrCat("has shape ", Show(linear), ", must be ", Show(conv1d),
                        " by config.json's linear_layout \"conv1d\""));
    }
  }

  // nullptr after an error.
  const TensorView* Find(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView* tensor = source_.Find(name);
    if (tensor == nullptr) {
      Fail(name, StrCat("is missing, expected a float tensor ", Show(shape)));
    } else if (!FloatType(tensor->type)) {
      Fail(name, StrCat("has dtype ", NameOf(tensor->type), ", must be F32, F16 or BF16"));
    } else if (tensor->shape != shape) {
      Fail(name,
           StrCat("has shape ", Show(tensor->shape), ", must be ", Show(shape), " by config.json"));
    } else if (const std::optional<size_t> index = FirstNonFinite(*tensor)) {
      const bool is_nan = std::isnan(tensor->ToFloats()[*index]);
      Fail(name, StrCat("holds ", is_nan ? "a NaN" : "an infinity", " at ",
                        Coordinates(shape, *index), ", must be finite"));
    }
    if (!status_.ok()) return nullptr;
    num_parameters_ += tensor->NumElements();
    return tensor;
  }

  std::unique_ptr<Buffer> LoadVector(const std::string& name, int size) {
    return LoadFloats(name, {size});
  }

  std::unique_ptr<Buffer> LoadFloats(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView* tensor = Find(name, shape);
    if (tensor == nullptr) return nullptr;
    const std::vector<float> values = tensor->ToFloats();
    const size_t num_bytes = values.size() * sizeof(float);
    absl::StatusOr<std::unique_ptr<Buffer>> buffer = backend_->Allocate(num_bytes);
    status_ = buffer.status();
    if (status_.ok()) status_ = backend_->CopyIn((*buffer)->Address(), values.data(), num_bytes);
    return status_.ok() ? *std::move(buffer) : nullptr;
  }

  std::unique_ptr<PackedMatrix> LoadMatrix(const std::string& name, int num_rows, int num_cols,
                                           bool transposed) {
    std::vector<int64_t> shape{num_rows, num_cols};
    if (transposed) std::swap(shape[0], shape[1]);
    const TensorView* stored = source_.Find(name);
    if (stored != nullptr && stored->type == TensorType::kI8) {
      return LoadQuantizedMatrix(name, DType::kI8, num_rows, num_cols, transposed);
    }
    if (stored != nullptr && stored->type == TensorType::kU8) {
      return LoadQuantizedMatrix(name, DType::kI4, num_rows, num_cols, transposed);
    }
    const TensorView* tensor = Find(name, shape);
    if (tensor == nullptr) return nullptr;
    const DType file_dtype = *FloatType(tensor->type);
    const DType dtype = dtype_.value_or(file_dtype);
    if (dtype == DType::kF16 && file_dtype != DType::kF16 && !FitsHalf(name, *tensor)) {
      return nullptr;
    }
    absl::StatusOr<std::unique_ptr<PackedMatrix>> packed =
        backend_->Pack({.elements = tensor->bytes.data(),
                        .dtype = file_dtype,
                        .num_rows = num_rows,
                        .num_cols = num_cols,
                        .transposed = transposed},
                       dtype);
    status_ = packed.status();
    source_.Release(name);
    return status_.ok() ? *std::move(packed) : nullptr;
  }

  // A matrix that `lssar quantize` wrote: NAME is I8 [rows, cols] (int8) or U8 [rows, ceil(cols /
  // 2)] (int4: two codes a byte, quantize.h), NAME_scale is BF16 [rows, groups]. As `file_dtype` it
  // is packed as it is.
  std::unique_ptr<PackedMatrix> LoadQuantizedMatrix(const std::string& name, DType file_dtype,
                                                    int num_rows, int num_cols, bool transposed) {
    const std::string scale_name = name + "_scale";
    const int group_cols = GroupColsOf(file_dtype);
    const int num_groups = (num_cols + group_cols - 1) / group_cols;
    const bool is_int4 = file_dtype == DType::kI4;
    const TensorView& steps = *source_.Find(name);
    const std::vector<int64_t> shape{num_rows, is_int4 ? (num_cols + 1) / 2 : num_cols};
    const TensorView* scales = source_.Find(scale_name);
    if (transposed) {
      Fail(name, StrCat("is ", NameOf(steps.type),
                        " and stored as [in, out] (linear_layout \"conv1d\"), must be [out, in]"));
    } else if (steps.shape != shape) {
      Fail(name, StrCat("has shape ", Show(steps.shape), ", must be ", Show(shape),
                        " by config.json", is_int4 ? ": two columns in a byte" : ""));
    } else if (!is_int4 && std::ranges::find(steps.bytes, std::byte{0x80}) != steps.bytes.end()) {
      Fail(name, "holds -128, must be in [-127, 127]");
    } else if (scales != nullptr && scales->type != TensorType::kBF16) {
      Fail(scale_name, StrCat("has dtype ", NameOf(scales->type), ", must be BF16"));
    }
    scales = status_.ok() ? Find(scale_name, {num_rows, num_groups}) : nullptr;
    if (scales == nullptr) return nullptr;
    num_parameters_ += int64_t{num_rows} * num_cols - scales->NumElements();
    absl::StatusOr<std::unique_ptr<PackedMatrix>> packed =
        backend_->Pack({.elements = steps.bytes.data(),
                        .dtype = file_dtype,
                        .num_rows = num_rows,
                        .num_cols = num_cols,
                        .scales = reinterpret_cast<const uint16_t*>(scales->bytes.data())},
                       dtype_.value_or(file_dtype));
    status_ = packed.status();
    source_.Release(name);
    source_.Release(scale_name);
    return status_.ok() ? *std::move(packed) : nullptr;
  }

  bool FitsHalf(const std::string& name, const TensorView& tensor) {
    const DType dtype = *FloatType(tensor.type);
    for (size_t i = 0; i < size_t(tensor.NumElements()); ++i) {
      const float value = LoadElement(tensor.bytes.data(), dtype, i);
      if (std::fabs(value) < kHalfOverflow) continue;
      Fail(name, StrCat("holds ", value, " at ", Coordinates(tensor.shape, i),
                        ", must be below 65520 for dtype fp16"));
      return false;
    }
    return true;
  }

  GptNorm LoadNorm(const std::string& name) {
    const int size = config_.hidden_size;
    return {.weight = config_.norm_weight ? LoadVector(name + ".weight", size) : nullptr,
            .bias = LoadBias(name, size, config_.norm_bias)};
  }

  GptNorm LoadHeadNorm(const std::string& name) {
    const int size = config_.HeadDim();
    return {.weight = config_.qk_norm.has_weight ? LoadVector(name + ".weight", size) : nullptr,
            .bias = LoadBias(name, size, config_.qk_norm.has_bias)};
  }

  GptLinear LoadLinear(const std::string& name, int num_out, int num_in, bool has_bias) {
    return {.weight = LoadMatrix(name + ".weight", num_out, num_in, transposed_),
            .bias = LoadBias(name, num_out, has_bias)};
  }

  std::unique_ptr<Buffer> LoadBias(const std::string& name, int size, bool has_bias) {
    return has_bias ? LoadVector(name + ".bias", size) : nullptr;
  }

  const TensorFile& file_;
  const ModelConfig& config_;
  Backend* backend_;
  std::optional<DType> dtype_;
  TensorSource source_;
  bool transposed_ = false;
  int64_t num_parameters_ = 0;
  absl::Status status_;
};

}  // namespace

DType GptWeights::NarrowestType() const {
  DType narrowest = embedding->StoredType();
  const auto visit = [&](const std::unique_ptr<PackedMatrix>& matrix) {
    if (matrix == nullptr) return;
    const DType type = matrix->StoredType();
    if (InfoOf(type).num_bits < InfoOf(narrowest).num_bits) narrowest = type;
  };
  for (const GptLayer& layer : layers) {
    for (const GptLinear* linear :
         {&layer.qkv, &layer.attention_out, &layer.mlp_gate, &layer.mlp_in, &layer.mlp_out}) {
      visit(linear->weight);
    }
  }
  visit(untied_head);
  return narrowest;
}

namespace {

// Errors  RESOURCE_EXHAUSTED: the weights need more memory than the device has free
absl::Status CheckDeviceMemory(const TensorFile& file, Backend* backend,
                               std::optional<DType> dtype) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> free_bytes, backend->FreeBytes());
  const int64_t least_bytes = LeastBytes(file, dtype);
  if (!free_bytes || least_bytes <= *free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      StrCat("the weights need ", least_bytes, " bytes", dtype ? " as " : "",
             dtype ? NameOf(*dtype) : std::string_view(), ", but ", std::string(backend->Name()),
             " has ", *free_bytes, " bytes free"));
}

}  // namespace

int64_t LeastBytes(const TensorFile& file, std::optional<DType> dtype) {
  int64_t num_bytes = 0;
  for (const auto& [name, tensor] : file.Tensors()) {
    if (tensor.shape.size() != 2) continue;  // a norm, a bias, or what older files hold beside them
    const int64_t stored = int64_t(tensor.bytes.size());
    const bool is_float = FloatType(tensor.type).has_value();
    const int64_t packed =
        dtype ? tensor.NumElements() * int64_t(InfoOf(*dtype).num_bits) / 8 : stored;
    num_bytes += is_float ? packed : std::min(packed, stored);
  }
  return num_bytes;
}

absl::StatusOr<GptWeights> LoadGptWeights(const TensorFile& file, const ModelConfig& config,
                                          Backend* backend, std::optional<DType> dtype) {
  RETURN_IF_ERROR(CheckDeviceMemory(file, backend, dtype));
  Loader loader(file, config, backend, dtype);
  GptWeights weights;
  weights.embedding = loader.LoadEmbedding();
  weights.positions = loader.LoadPositions();
  weights.embedding_norm = loader.LoadEmbeddingNorm();
  for (int i = 0; i < config.num_hidden_layers && loader.status().ok(); ++i) {
    weights.layers.push_back(loader.LoadLayer(i));
  }
  weights.final_norm = loader.LoadFinalNorm();
  weights.untied_head = loader.LoadUntiedHead();
  weights.regression_head = loader.LoadRegressionHead();
  loader.RejectUnexpected();
  RETURN_IF_ERROR(loader.status());
  weights.num_parameters = loader.NumParameters();
  return weights;
}

}  // namespace lssar
