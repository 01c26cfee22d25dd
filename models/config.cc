#include "models/config.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "models/json_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

// Limits that keep a damaged or hostile config from asking for absurd memory. They are far above
// the paper's models.
constexpr int kMaxVocab = 1 << 20;
constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 1024;
constexpr int kMaxHiddenSize = 1 << 16;
constexpr int kMaxHeadDim = 512;
constexpr int kMaxIntermediateSize = 1 << 18;
constexpr int kMaxPositions = 1 << 20;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxNtkFactor = 1024;
constexpr double kMaxPower = 1000;

struct KindName {
  AttentionKind kind;
  std::string_view name;
};

constexpr std::array<KindName, 10> kKinds{{
    {AttentionKind::kSoftmax, "softmax"},
    {AttentionKind::kLssa, "lssa"},
    {AttentionKind::kLssar, "lssar"},
    {AttentionKind::kSoftmaxR, "softmax_r"},
    {AttentionKind::kSigmoid, "sigmoid"},
    {AttentionKind::kSigmoidN, "sigmoid_n"},
    {AttentionKind::kSigmoidNL1, "sigmoid_n_l1"},
    {AttentionKind::kSigmoidR, "sigmoid_r"},
    {AttentionKind::kPhi, "phi"},
    {AttentionKind::kReluWortsman, "relu_wortsman"},
}};

constexpr std::array<std::pair<Phi, std::string_view>, 8> kPhis{{
    {Phi::kRelu, "relu"},
    {Phi::kRelu2, "relu2"},
    {Phi::kRelu6, "relu6"},
    {Phi::kGelu, "gelu"},
    {Phi::kSigmoid, "sigmoid"},
    {Phi::kSoftplus, "softplus"},
    {Phi::kMish, "mish"},
    {Phi::kExp, "exp"},
}};

std::string KindNames() {
  return StrJoin(kKinds, [](const KindName& k) { return k.name; });
}

std::string PhiNames() {
  return StrJoin(kPhis, [](const auto& phi) { return phi.second; });
}

// An architecture value and its name in config.json. Empty: the value is known, but no backend
// computes it.
template <typename Value>
struct Choice {
  std::string_view name;
  std::optional<Value> value;
};

constexpr std::array<Choice<ModelConfig::NormKind>, 2> kNorms{{
    {"layer_norm", ModelConfig::NormKind::kLayerNorm},
    {"rms_norm", std::nullopt},
}};

constexpr std::array<Choice<ModelConfig::MlpKind>, 2> kMlps{{
    {"plain", ModelConfig::MlpKind::kPlain},
    {"gated", std::nullopt},
}};

constexpr std::array<Choice<Activation>, 5> kActivations{{
    {"gelu_new", Activation::kGeluTanh},
    {"gelu", std::nullopt},
    {"relu", std::nullopt},
    {"relu2", std::nullopt},
    {"silu", std::nullopt},
}};

// The value of field `name`; the first choice where the field is absent.
template <typename Value, size_t num_choices>
Value ReadChoice(std::string_view name, const std::array<Choice<Value>, num_choices>& choices,
                 JsonFields* fields) {
  const std::string given = fields->Text(name, std::string(choices.front().name));
  std::string computed;
  std::string_view problem = "";
  for (const Choice<Value>& choice : choices) {
    if (choice.name == given && choice.value) return *choice.value;
    if (choice.name == given) problem = ", which no backend computes yet";
    if (choice.value) computed += StrCat(computed.empty() ? "" : ", ", choice.name);
  }
  fields->Fail(StrCat(name, " is \"", given, "\"", problem, "; must be one of ", computed));
  return *choices.front().value;
}

// The attention object is closed: an unknown field there could mean another function.
absl::StatusOr<AttentionSpec> ParseAttention(const json& object, std::string_view source) {
  JsonFields fields(object, StrCat(source, ": attention"));
  fields.RefuseOthers({"kind", "p", "phi"});
  AttentionSpec spec;
  const std::string name = fields.Text("kind");
  RETURN_IF_ERROR(fields.status());
  const std::optional<AttentionKind> kind = ParseAttentionKind(name);
  if (!kind) {
    fields.Fail(StrCat("kind is \"", name, "\", must be one of ", KindNames()));
    return fields.status();
  }
  spec.kind = *kind;
  if (spec.Form().reweights && !fields.Has("p")) {
    fields.Fail(StrCat("p is missing: \"", name, "\" re-weights with it; add \"p\": 15"));
  }
  spec.p = fields.Positive("p", kMaxPower, spec.p);
  const std::string phi_name = fields.Text("phi", "");
  if (!phi_name.empty() || *kind == AttentionKind::kPhi) {
    const std::optional<Phi> phi = ParsePhi(phi_name);
    if (!phi) fields.Fail(StrCat("phi is \"", phi_name, "\", must be one of ", PhiNames()));
    spec.phi = phi.value_or(spec.phi);
  }
  RETURN_IF_ERROR(fields.status());
  return spec;
}

// The factor of dynamic NTK, the only rope scaling.
absl::StatusOr<double> ParseRopeScaling(const json& object, std::string_view source) {
  JsonFields fields(object, StrCat(source, ": rope_scaling"));
  fields.RefuseOthers({"type", "rope_type", "factor"});
  const std::string_view name = fields.Has("type") ? "type" : "rope_type";
  const std::string type = fields.Text(name);
  if (fields.status().ok() && type != "dynamic") {
    fields.Fail(StrCat(name, " is \"", type, "\", must be \"dynamic\" (or rope_scaling null)"));
  }
  const double factor = fields.Number("factor", 1, kMaxNtkFactor);
  RETURN_IF_ERROR(fields.status());
  return factor;
}

// GPT-2 switches that change the function: only the value that the backends compute is accepted.
void RefuseOtherComputation(JsonFields* fields) {
  for (const std::string_view name : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (fields->Bool(name, false)) fields->Fail(StrCat(name, " is true, must be false"));
  }
  if (!fields->Bool("scale_attn_weights", true)) {
    fields->Fail("scale_attn_weights is false, must be true");
  }
}

void CheckHeads(const ModelConfig& config, JsonFields* fields) {
  if (config.hidden_size % config.num_attention_heads != 0) {
    fields->Fail(StrCat("n_embd is ", config.hidden_size, ", must be a multiple of n_head, ",
                        config.num_attention_heads));
    return;
  }
  const int head_dim = config.HeadDim();
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim) {
    fields->Fail(StrCat("n_embd / n_head is ", head_dim,
                        ", must be even (rotary pairs) and at most ", kMaxHeadDim));
  }
  if (config.dynamic_ntk_factor && head_dim <= 2) {
    fields->Fail("rope_scaling needs n_embd / n_head of at least 4");
  }
  if (config.num_kv_heads != config.num_attention_heads) {
    fields->Fail(StrCat("num_key_value_heads is ", config.num_kv_heads,
                        ", which no backend computes yet; must be n_head, ",
                        config.num_attention_heads));
  }
}

void ReadArchitecture(ModelConfig* config, JsonFields* fields) {
  config->num_kv_heads =
      int(fields->Int("num_key_value_heads", 1, kMaxHeads, config->num_attention_heads));
  config->norm_kind = ReadChoice("normalization", kNorms, fields);
  config->layer_norm_epsilon = float(fields->Positive("layer_norm_epsilon", 1, 1e-5));
  config->mlp_kind = ReadChoice("mlp_kind", kMlps, fields);
  config->activation = ReadChoice("activation_function", kActivations, fields);
  config->norm_bias = fields->Bool("norm_bias", true);
  config->attention_bias = fields->Bool("attention_bias", true);
  config->mlp_bias = fields->Bool("mlp_bias", true);
}

}  // namespace

std::string_view NameOf(AttentionKind kind) {
  for (const KindName& k : kKinds) {
    if (k.kind == kind) return k.name;
  }
  return "?";
}

std::optional<AttentionKind> ParseAttentionKind(std::string_view name) {
  for (const KindName& k : kKinds) {
    if (k.name == name) return k.kind;
  }
  return std::nullopt;
}

std::optional<Phi> ParsePhi(std::string_view name) {
  for (const auto& [phi, phi_name] : kPhis) {
    if (phi_name == name) return phi;
  }
  return std::nullopt;
}

absl::StatusOr<ModelConfig> ParseConfig(std::string_view text, std::string_view source) {
  ASSIGN_OR_RETURN(const json parsed, ParseJson(text, source));
  JsonFields fields(parsed, std::string(source));

  ModelConfig config;
  config.vocab_size = int(fields.Int("vocab_size", 1, kMaxVocab));
  config.num_hidden_layers = int(fields.Int("n_layer", 1, kMaxLayers));
  config.num_attention_heads = int(fields.Int("n_head", 1, kMaxHeads));
  config.hidden_size = int(fields.Int("n_embd", 2, kMaxHiddenSize));
  config.intermediate_size =
      int(fields.Int("n_inner", 1, kMaxIntermediateSize, 4 * config.hidden_size));
  config.max_position_embeddings = int(fields.Int("n_positions", 1, kMaxPositions));
  ReadArchitecture(&config, &fields);
  config.rope_theta = fields.Number("rope_theta", 1, kMaxTheta, 10000.0);
  config.rope_layout = fields.Choice("rope_layout", {"half", "interleaved"}) == 0
                           ? RopeLayout::kHalfSplit
                           : RopeLayout::kInterleaved;
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", true);
  config.conv1d_layout = fields.Choice("linear_layout", {"linear", "conv1d"}) == 1;
  config.bos_id = fields.OptionalInt("bos_token_id", 0, config.vocab_size - 1);
  config.eos_id = fields.OptionalInt("eos_token_id", 0, config.vocab_size - 1);
  RefuseOtherComputation(&fields);
  if (const json* scaling = fields.Object("rope_scaling")) {
    ASSIGN_OR_RETURN(config.dynamic_ntk_factor, ParseRopeScaling(*scaling, source));
  }
  if (fields.status().ok()) CheckHeads(config, &fields);

  const json* attention = fields.Object("attention");
  if (fields.status().ok() && attention == nullptr) {
    fields.Fail(
        "attention is missing: config.json must name the attention that the model was trained "
        "with; add \"attention\": {\"kind\": \"lssar\", \"p\": 15}, or {\"kind\": \"softmax\"} for "
        "a plain GPT");
  }
  RETURN_IF_ERROR(fields.status());
  ASSIGN_OR_RETURN(config.attention, ParseAttention(*attention, source));
  config.attention.max_position_embeddings = config.max_position_embeddings;
  return config;
}

double RopeBaseAtLength(const ModelConfig& config, int length) {
  if (!config.dynamic_ntk_factor || length <= config.max_position_embeddings) {
    return config.rope_theta;
  }
  const double f = *config.dynamic_ntk_factor;
  const double stretch = f * double(length) / double(config.max_position_embeddings) - (f - 1);
  const double d = double(config.HeadDim());
  return config.rope_theta * std::pow(stretch, d / (d - 2));
}

double RopeBase(const ModelConfig& config, int length_budget) {
  int64_t length = config.max_position_embeddings;
  while (length < length_budget) length *= 2;
  return RopeBaseAtLength(config, int(length));
}

}  // namespace lssar
