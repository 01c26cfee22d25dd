#include "models/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/attention_override.h"
#include "models/config_fields.h"
#include "models/hf_config.h"
#include "models/json_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

// Limits that keep a damaged or hostile config from asking for absurd memory. They are far above
// the paper's models.
constexpr int kMaxVocab = 1 << 20;
constexpr int kMaxHeads = 1024;
constexpr int kMaxHiddenSize = 1 << 16;
constexpr int kMaxHeadDim = 512;
constexpr int kMaxIntermediateSize = 1 << 18;
constexpr int kMaxPositions = 1 << 20;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxNtkFactor = 1024;
constexpr double kMaxRopeFactor = 1e6;
constexpr double kMaxResidualScale = 1000;
constexpr double kMaxSoftcap = 1e6;
constexpr double kDefaultEpsilon = 1e-5;
// All are compared with each other here, and with each token that is generated.
constexpr size_t kMaxEosIds = 256;

std::string KindNames() {
  return StrJoin(kAttentionKinds, [](const AttentionKindInfo& info) { return info.name; });
}

std::string PhiNames() {
  return StrJoin(kPhis, [](const PhiInfo& info) { return info.name; });
}

// An architecture value and its name in config.json.
template <typename Value>
struct Choice {
  std::string_view name;
  Value value;
};

constexpr std::array<Choice<NormKind>, 2> kNorms{{
    {"layer_norm", NormKind::kLayerNorm},
    {"rms_norm", NormKind::kRmsNorm},
}};

constexpr std::array<Choice<ModelConfig::NormPosition>, 2> kNormPositions{{
    {"pre", ModelConfig::NormPosition::kPre},
    {"sandwich", ModelConfig::NormPosition::kSandwich},
}};

constexpr std::array<Choice<ModelConfig::MlpKind>, 2> kMlps{{
    {"plain", ModelConfig::MlpKind::kPlain},
    {"gated", ModelConfig::MlpKind::kGated},
}};

constexpr std::array<Choice<Activation>, 6> kActivations{{
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu", Activation::kGeluErf},
    {"relu", Activation::kRelu},
    {"relu2", Activation::kRelu2},
    {"silu", Activation::kSilu},
}};

constexpr std::array<Choice<RopeLayout>, 2> kRopeLayouts{{
    {"half", RopeLayout::kHalfSplit},
    {"interleaved", RopeLayout::kInterleaved},
}};

constexpr std::array<Choice<ModelConfig::Positions>, 4> kPositions{{
    {"rotary", ModelConfig::Positions::kRotary},
    {"none", ModelConfig::Positions::kNone},
    {"learned", ModelConfig::Positions::kLearned},
    {"alibi", ModelConfig::Positions::kAlibi},
}};

constexpr std::array<Choice<ModelConfig::TensorNames>, 5> kTensorNames{{
    {"gpt", ModelConfig::TensorNames::kOurs},
    {"gpt2", ModelConfig::TensorNames::kGpt2},
    {"llama", ModelConfig::TensorNames::kLlama},
    {"gpt_neox", ModelConfig::TensorNames::kGptNeox},
    {"bloom", ModelConfig::TensorNames::kBloom},
}};

constexpr std::array<Choice<bool>, 2> kQkNormPositions{{
    {"before_rotary", false},
    {"after_rotary", true},
}};

// The value of field `name`, which must be there.
template <typename Value, size_t num_choices>
Value RequireChoice(std::string_view name, const std::array<Choice<Value>, num_choices>& choices,
                    JsonFields* fields) {
  const std::string names =
      StrJoin(choices, [](const Choice<Value>& choice) { return choice.name; });
  if (!fields->Has(name)) {
    fields->Fail(StrCat(name, " is missing; models differ in it: it must be one of ", names));
  }
  const std::string value = fields->Text(name, "");
  for (const Choice<Value>& choice : choices) {
    if (choice.name == value) return choice.value;
  }
  fields->Fail(StrCat(name, " is \"", value, "\", must be one of ", names));
  return choices.front().value;
}

// The same; the first choice where the field is absent.
template <typename Value, size_t num_choices>
Value ReadChoice(std::string_view name, const std::array<Choice<Value>, num_choices>& choices,
                 JsonFields* fields) {
  return fields->Has(name) ? RequireChoice(name, choices, fields) : choices.front().value;
}

// The attention object is closed: an unknown field there could mean another function.
absl::StatusOr<AttentionSpec> ParseAttention(const json& object, const std::string& source) {
  JsonFields fields(object, source);
  fields.RejectOthers({"kind", "p", "phi", "window"});
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
  spec.p = fields.Positive("p", kMaxAttentionP, spec.p);
  if (spec.p < kMinAttentionP) {
    fields.Fail(StrCat("p is ", spec.p, ", must be at least ", kMinAttentionP,
                       ", the smallest normal number in fp32"));
  }
  const std::string phi_name = fields.Text("phi", "");
  if (!phi_name.empty() || *kind == AttentionKind::kPhi) {
    const std::optional<Phi> phi = ParsePhi(phi_name);
    if (!phi) fields.Fail(StrCat("phi is \"", phi_name, "\", must be one of ", PhiNames()));
    spec.phi = phi.value_or(spec.phi);
  }
  spec.window = int(fields.Int("window", 1, kMaxWindow, 0));
  if (fields.Has("window") && spec.kind != AttentionKind::kSoftmax) {
    fields.Fail(StrCat("window is given, but kind is \"", name, "\"; only softmax has a window"));
  }
  RETURN_IF_ERROR(fields.status());
  return spec;
}

// One object for all layers, or a list with one object a layer.
absl::Status ReadAttention(const json& parsed, std::string_view source, ModelConfig* config) {
  const auto found = parsed.find("attention");
  if (found == parsed.end() || found->is_null()) {
    return absl::InvalidArgumentError(StrCat(
        source,
        ": attention is missing: config.json must name the attention that the model was trained "
        "with; add \"attention\": {\"kind\": \"lssar\", \"p\": 15}, or {\"kind\": \"softmax\"} for "
        "a plain GPT"));
  }
  const size_t num_layers = size_t(config->num_hidden_layers);
  if (found->is_array() && found->size() != num_layers) {
    return absl::InvalidArgumentError(StrCat(source, ": attention has ", found->size(),
                                             " elements, must have one a layer, n_layer ",
                                             num_layers, ", or be one object"));
  }
  if (found->is_array()) {
    for (size_t i = 0; i < num_layers; ++i) {
      ASSIGN_OR_RETURN(AttentionSpec spec,
                       ParseAttention((*found)[i], StrCat(source, ": attention[", i, "]")));
      config->attention.push_back(spec);
    }
  } else {
    ASSIGN_OR_RETURN(AttentionSpec spec, ParseAttention(*found, StrCat(source, ": attention")));
    config->attention.assign(num_layers, spec);
  }
  for (AttentionSpec& spec : config->attention) {
    spec.max_position_embeddings = config->max_position_embeddings;
    spec.has_alibi = config->positions == ModelConfig::Positions::kAlibi;
    if (spec.has_alibi && spec.kind != AttentionKind::kSoftmax) {
      return absl::InvalidArgumentError(
          StrCat(source, ": positions is \"alibi\", but an attention kind is \"", NameOf(spec.kind),
                 "\"; only softmax is computed with ALiBi"));
    }
  }
  return absl::OkStatus();
}

// The factors of longrope, one for each pair of rotary elements.
std::vector<double> ReadRopeFactors(std::string_view name, int num_pairs, JsonFields* fields) {
  std::vector<double> factors;
  const json* const list = fields->Array(name);
  if (list == nullptr || list->size() != size_t(num_pairs)) {
    fields->Fail(StrCat(name, " must have ", num_pairs, " numbers, one for each rotary pair"));
    return factors;
  }
  for (const json& factor : *list) {
    const double value = factor.is_number() ? factor.get<double>() : 0;
    if (!(value > 0 && value <= kMaxRopeFactor)) {
      fields->Fail(StrCat(name, " holds ", QuoteJson(factor), ", must hold numbers in (0, ",
                          kMaxRopeFactor, "]"));
    }
    factors.push_back(value);
  }
  return factors;
}

// YaRN's factor of cosines and sines. Source  arXiv 2309.00071, section 3.4, and transformers
double YarnAttentionFactor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [&](double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; };
  return mscale > 0 && mscale_all_dim > 0 ? scale(mscale) / scale(mscale_all_dim) : scale(1);
}

absl::Status ReadRopeScaling(const json& object, std::string_view source, ModelConfig* config) {
  using Kind = RopeScaling::Kind;
  JsonFields fields(object, StrCat(source, ": rope_scaling"));
  RopeScaling& scaling = config->rope_scaling;
  const std::string_view name = fields.Has("type") ? "type" : "rope_type";
  const std::string type = fields.Text(name);
  const auto read_factor = [&] { return fields.Number("factor", 1, kMaxNtkFactor); };
  const auto read_length = [&](std::optional<int64_t> fallback) {
    return double(fields.Int("original_max_position_embeddings", 1, kMaxPositions, fallback));
  };
  const int64_t trained = config->max_position_embeddings;
  if (type == "dynamic") {
    fields.RejectOthers({"type", "rope_type", "factor"});
    config->dynamic_ntk_factor = read_factor();
  } else if (type == "linear") {
    fields.RejectOthers({"type", "rope_type", "factor"});
    scaling.kind = Kind::kLinear;
    scaling.factor = read_factor();
  } else if (type == "llama3") {
    fields.RejectOthers({"type", "rope_type", "factor", "low_freq_factor", "high_freq_factor",
                         "original_max_position_embeddings"});
    scaling.kind = Kind::kLlama3;
    scaling.factor = read_factor();
    scaling.original_length = read_length({});
    scaling.low_freq_factor = fields.Positive("low_freq_factor", kMaxRopeFactor);
    scaling.high_freq_factor = fields.Positive("high_freq_factor", kMaxRopeFactor);
    if (fields.status().ok() && !(scaling.low_freq_factor < scaling.high_freq_factor)) {
      fields.Fail("low_freq_factor must be below high_freq_factor");
    }
  } else if (type == "yarn") {
    fields.RejectOthers({"type", "rope_type", "factor", "original_max_position_embeddings",
                         "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
                         "truncate"});
    scaling.kind = Kind::kYarn;
    scaling.factor = read_factor();
    scaling.original_length = read_length(trained);
    scaling.beta_fast = fields.Positive("beta_fast", kMaxRopeFactor, 32);
    scaling.beta_slow = fields.Positive("beta_slow", kMaxRopeFactor, 1);
    scaling.truncate = fields.Bool("truncate", true);
    const double computed =
        YarnAttentionFactor(scaling.factor, fields.Number("mscale", 0, kMaxRopeFactor, 0),
                            fields.Number("mscale_all_dim", 0, kMaxRopeFactor, 0));
    scaling.attention_factor = fields.Positive("attention_factor", kMaxRopeFactor, computed);
    // The logarithm of the base divides.
    if (config->rope_theta <= 1) fields.Fail("type yarn needs a rope_theta above 1");
  } else if (type == "longrope") {
    fields.RejectOthers({"type", "rope_type", "factor", "original_max_position_embeddings",
                         "attention_factor", "short_factor", "long_factor"});
    scaling.kind = Kind::kLongRope;
    scaling.original_length = read_length(trained);
    if (fields.status().ok() && scaling.original_length < 2) {  // its logarithm divides
      fields.Fail("original_max_position_embeddings is 1, must be at least 2");
    }
    const int num_pairs = config->RotaryDims() / 2;
    scaling.short_factors = ReadRopeFactors("short_factor", num_pairs, &fields);
    scaling.long_factors = ReadRopeFactors("long_factor", num_pairs, &fields);
    scaling.factor = double(trained) / std::max(scaling.original_length, 1.0);
    const double factor = fields.Positive("factor", kMaxNtkFactor, scaling.factor);
    const double computed =
        factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(scaling.original_length));
    scaling.attention_factor = fields.Positive("attention_factor", kMaxRopeFactor, computed);
  } else {
    fields.Fail(
        StrCat(name, " is \"", type,
               "\", must be one of dynamic, linear, llama3, longrope, yarn (or rope_scaling "
               "null)"));
  }
  return fields.status();
}

absl::StatusOr<ModelConfig::QkNorm> ParseQkNorm(const json& object, std::string_view source,
                                                float default_epsilon) {
  JsonFields fields(object, StrCat(source, ": qk_norm"));
  fields.RejectOthers({"kind", "position", "weight", "bias", "epsilon"});
  ModelConfig::QkNorm norm;
  norm.kind = RequireChoice("kind", kNorms, &fields);
  norm.after_rotary = RequireChoice("position", kQkNormPositions, &fields);
  if (!fields.Has("weight")) {
    fields.Fail("weight is missing: true if the checkpoint has attn.q_norm.weight, else false");
  }
  norm.has_weight = fields.Bool("weight", false);
  norm.has_bias = fields.Bool("bias", false);
  norm.epsilon = fields.PositiveFloat("epsilon", 1, default_epsilon);
  RETURN_IF_ERROR(fields.status());
  return norm;
}

void ReadHeads(ModelConfig* config, JsonFields* fields) {
  const int num_heads = config->num_attention_heads;
  config->num_kv_heads = int(fields->Int("num_key_value_heads", 1, kMaxHeads, num_heads));
  config->head_dim =
      int(fields->Int("head_dim", 2, kMaxHeadDim, std::max(2, config->hidden_size / num_heads)));
  if (!fields->status().ok()) return;
  if (!fields->Has("head_dim") && config->hidden_size % num_heads != 0) {
    fields->Fail(StrCat("n_embd is ", config->hidden_size, ", must be a multiple of n_head, ",
                        num_heads, ", where head_dim is not given"));
    return;
  }
  const int head_dim = config->head_dim;
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim ||
      (!fields->Has("head_dim") && config->hidden_size / num_heads < 2)) {
    fields->Fail(StrCat(fields->Has("head_dim") ? "head_dim" : "n_embd / n_head", " is ",
                        fields->Has("head_dim") ? head_dim : config->hidden_size / num_heads,
                        ", must be even (rotary pairs) and at most ", kMaxHeadDim));
  }
  if (num_heads % config->num_kv_heads != 0) {
    fields->Fail(StrCat("num_key_value_heads is ", config->num_kv_heads, ", must divide n_head, ",
                        num_heads));
  }
}

void ReadNorms(ModelConfig* config, JsonFields* fields) {
  config->norm_weight = fields->Bool("norm_weight", true);
  const bool has_bias = fields->Bool("norm_bias", true);
  if (!fields->Has("normalization") && (!config->norm_weight || !has_bias)) {
    fields->Fail(
        "normalization is missing: without norm_weight or norm_bias the tensors do not tell "
        "layer_norm from rms_norm; it must be one of layer_norm, rms_norm");
  }
  config->norm_kind = ReadChoice("normalization", kNorms, fields);
  const bool is_layer_norm = config->norm_kind == NormKind::kLayerNorm;
  // No known RMSNorm has a bias, so none is the default there.
  config->norm_bias = fields->Bool("norm_bias", is_layer_norm && config->norm_weight);
  if (!is_layer_norm && !fields->Has("layer_norm_epsilon")) {
    fields->Fail(
        "layer_norm_epsilon is missing: models with rms_norm differ in it; add 1e-5, 1e-6 "
        "or what the model was trained with (torch's default is 1.1920929e-07)");
  }
  config->layer_norm_epsilon = fields->PositiveFloat("layer_norm_epsilon", 1, kDefaultEpsilon);
  config->norm_position = ReadChoice("norm_position", kNormPositions, fields);
  config->embedding_norm = fields->Bool("embedding_norm", false);
}

void ReadBlock(ModelConfig* config, JsonFields* fields) {
  config->mlp_kind = ReadChoice("mlp_kind", kMlps, fields);
  config->activation = RequireChoice("activation_function", kActivations, fields);
  config->attention_bias = fields->Bool("attention_bias", true);
  config->attention_out_bias = fields->Bool("attention_out_bias", config->attention_bias);
  config->mlp_bias = fields->Bool("mlp_bias", true);
  config->mlp_out_bias = fields->Bool("mlp_out_bias", config->mlp_bias);
  config->parallel_residual = fields->Bool("parallel_residual", false);
  config->attention_residual_scale =
      fields->PositiveFloat("attention_residual_scale", kMaxResidualScale, 1.0);
  config->mlp_residual_scale = fields->PositiveFloat("mlp_residual_scale", kMaxResidualScale, 1.0);
}

void ReadRotary(ModelConfig* config, JsonFields* fields) {
  if (!fields->Has("rope_theta")) {
    fields->Fail(
        "rope_theta is missing: models differ in it; add the rotary base that the model "
        "was trained with, such as 10000");
  }
  config->rope_theta = fields->Number("rope_theta", 1, kMaxTheta, 10000.0);
  config->rope_layout = ReadChoice("rope_layout", kRopeLayouts, fields);
  const double factor = fields->Positive("partial_rotary_factor", 1, 1.0);
  config->rotary_dims = int(config->HeadDim() * factor);  // as Hugging Face rounds
  if (config->rotary_dims < 2 || config->rotary_dims % 2 != 0) {
    fields->Fail(StrCat("partial_rotary_factor is ", factor, ": it rotates ", config->rotary_dims,
                        " of a head's ", config->HeadDim(),
                        " elements, must be an even number, at least 2"));
  }
}

void ReadPositions(ModelConfig* config, JsonFields* fields) {
  config->positions = ReadChoice("positions", kPositions, fields);
  if (config->positions == ModelConfig::Positions::kRotary) {
    ReadRotary(config, fields);
  } else {
    config->rotary_dims = config->HeadDim();
    config->is_nope_layer.assign(size_t(config->num_hidden_layers), true);
    for (const char* const name :
         {"rope_theta", "rope_scaling", "rope_layout", "partial_rotary_factor", "nope_layers"}) {
      if (fields->Has(name))
        fields->Fail(StrCat(name, " is given, but positions is not \"rotary\""));
    }
  }
  const json* const layers = fields->Array("nope_layers");
  if (layers == nullptr || !fields->status().ok()) return;
  config->is_nope_layer.assign(size_t(config->num_hidden_layers), false);
  for (const json& layer : *layers) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= config->is_nope_layer.size()) {
      fields->Fail(StrCat("nope_layers holds ", QuoteJson(layer), ", must hold layers in [0, ",
                          config->num_hidden_layers - 1, "]"));
      return;
    }
    config->is_nope_layer[layer.get<size_t>()] = true;
  }
}

void ReadVocabulary(ModelConfig* config, JsonFields* fields) {
  config->unpadded_vocab_size =
      int(fields->Int("unpadded_vocab_size", 1, config->vocab_size, config->vocab_size));
  config->tie_word_embeddings = fields->Bool("tie_word_embeddings", true);
  config->final_logit_softcapping =
      fields->Has("final_logit_softcapping")
          ? fields->PositiveFloat("final_logit_softcapping", kMaxSoftcap)
          : 0.0f;
  config->bos_id = fields->OptionalInt("bos_token_id", 0, config->vocab_size - 1);
}

}  // namespace

absl::StatusOr<ModelConfig> ParseConfig(std::string_view text, std::string_view source) {
  ASSIGN_OR_RETURN(json parsed, ParseJson(text, source));
  if (IsHuggingFaceConfig(parsed)) {
    ASSIGN_OR_RETURN(parsed, FromHuggingFaceConfig(parsed, source));
  }
  RETURN_IF_ERROR(CheckModelType(parsed, source));
  JsonFields fields(parsed, std::string(source));

  ModelConfig config;
  config.vocab_size = int(fields.Int("vocab_size", 1, kMaxVocab));
  config.num_hidden_layers = int(fields.Int("n_layer", 1, kMaxLayers));
  config.num_attention_heads = int(fields.Int("n_head", 1, kMaxHeads));
  config.hidden_size = int(fields.Int("n_embd", 2, kMaxHiddenSize));
  config.intermediate_size =
      int(fields.Int("n_inner", 1, kMaxIntermediateSize, 4 * config.hidden_size));
  config.max_position_embeddings = int(fields.Int("n_positions", 1, kMaxPositions));
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(CheckOtherFields(parsed, source));
  ReadHeads(&config, &fields);
  RETURN_IF_ERROR(fields.status());
  ReadNorms(&config, &fields);
  ReadBlock(&config, &fields);
  ReadPositions(&config, &fields);
  if (const json* scaling = fields.Object("rope_scaling")) {
    RETURN_IF_ERROR(fields.status());
    RETURN_IF_ERROR(ReadRopeScaling(*scaling, source, &config));
    if (config.dynamic_ntk_factor && config.rotary_dims <= 2) {
      fields.Fail("rope_scaling needs at least 4 rotary elements in a head");
    }
  }
  ReadVocabulary(&config, &fields);
  config.tensor_names = ReadChoice("tensor_names", kTensorNames, &fields);
  config.conv1d_layout = fields.Choice("linear_layout", {"linear", "conv1d"}) == 1;
  RETURN_IF_ERROR(fields.status());
  if (const json* norm = fields.Object("qk_norm")) {
    ASSIGN_OR_RETURN(config.qk_norm, ParseQkNorm(*norm, source, config.layer_norm_epsilon));
  }
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(ReadAttention(parsed, source, &config));
  RETURN_IF_ERROR(config.AddEosIds(text, source));
  return config;
}

absl::Status ModelConfig::AddEosIds(std::string_view text, std::string_view source) {
  ASSIGN_OR_RETURN(const json object, ParseJson(text, source));
  JsonFields fields(object, std::string(source));
  RETURN_IF_ERROR(fields.status());
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return absl::OkStatus();
  if (found->is_array() && found->size() > kMaxEosIds) {
    fields.Fail(StrCat("eos_token_id has ", found->size(), " ids, must have at most ", kMaxEosIds));
    return fields.status();
  }
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    const json one = {{"eos_token_id", id}};
    JsonFields field(one, std::string(source));
    const auto value = int32_t(field.Int("eos_token_id", 0, NumTokenIds() - 1));
    RETURN_IF_ERROR(field.status());
    if (IsEos(value)) continue;
    if (eos_id) {
      other_eos_ids.push_back(value);
    } else {
      eos_id = value;
    }
  }
  return absl::OkStatus();
}

bool ModelConfig::IsEos(int32_t id) const {
  return eos_id == id || std::ranges::find(other_eos_ids, id) != other_eos_ids.end();
}

std::vector<int32_t> ModelConfig::EosIds() const {
  std::vector<int32_t> ids;
  if (eos_id) ids.push_back(*eos_id);
  ids.insert(ids.end(), other_eos_ids.begin(), other_eos_ids.end());
  return ids;
}

std::string ModelConfig::AttentionNames() const {
  std::vector<std::string_view> names;
  for (const AttentionSpec& spec : attention) {
    const std::string_view name = NameOf(spec.kind);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return StrJoin(names);
}

std::optional<double> ModelConfig::AttentionP() const {
  std::optional<double> p;
  for (const AttentionSpec& spec : attention) {
    if (!spec.Form().reweights) continue;
    if (p && *p != spec.p) return std::nullopt;
    p = spec.p;
  }
  return p;
}

std::vector<Feature> ModelConfig::Features() const {
  std::vector<Feature> features;
  const auto add_norm = [&](NormKind kind) {
    if (kind == NormKind::kLayerNorm) features.push_back(Feature::kLayerNorm);
    if (kind == NormKind::kRmsNorm) features.push_back(Feature::kRmsNorm);
  };
  add_norm(norm_kind);
  switch (activation) {
    case Activation::kNone: break;
    case Activation::kGeluTanh: features.push_back(Feature::kGeluTanh); break;
    case Activation::kGeluErf: features.push_back(Feature::kGeluErf); break;
    case Activation::kRelu: features.push_back(Feature::kRelu); break;
    case Activation::kRelu2: features.push_back(Feature::kRelu2); break;
    case Activation::kSilu: features.push_back(Feature::kSilu); break;
  }
  features.push_back(mlp_kind == MlpKind::kGated ? Feature::kGatedMlp : Feature::kPlainMlp);
  features.push_back(norm_position == NormPosition::kSandwich ? Feature::kSandwichNorm
                                                              : Feature::kPreNorm);
  if (embedding_norm) features.push_back(Feature::kEmbeddingNorm);
  if (attention_residual_scale != 1.0f || mlp_residual_scale != 1.0f) {
    features.push_back(Feature::kResidualScale);
  }
  if (NumKvHeads() != num_attention_heads) features.push_back(Feature::kGroupedQuery);
  if (qk_norm.kind != NormKind::kNone) features.push_back(Feature::kQkNorm);
  if (RotaryDims() != HeadDim()) features.push_back(Feature::kPartialRotary);
  if (final_logit_softcapping > 0) features.push_back(Feature::kSoftcap);
  if (NumTokenIds() != vocab_size) features.push_back(Feature::kPaddedVocab);
  switch (positions) {
    case Positions::kRotary: features.push_back(Feature::kRotaryPositions); break;
    case Positions::kNone: features.push_back(Feature::kNoPositions); break;
    case Positions::kLearned: features.push_back(Feature::kLearnedPositions); break;
    case Positions::kAlibi: features.push_back(Feature::kAlibi); break;
  }
  const auto has_window = [](const AttentionSpec& spec) { return spec.window > 0; };
  if (std::ranges::any_of(attention, has_window)) features.push_back(Feature::kWindow);
  return features;
}

absl::Status CheckMaxLength(const ModelConfig& config, int max_model_len) {
  const std::optional<int> longest = config.MaxLength();
  if (!longest || max_model_len <= *longest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("max_model_len = ", max_model_len,
             " is over the model's learned positions, n_positions = ", *longest));
}

double RopeBaseAtLength(const ModelConfig& config, int length) {
  if (config.rope_scaling.kind == RopeScaling::Kind::kLongRope) {
    const bool is_long = double(length) > config.rope_scaling.original_length;
    return is_long ? -config.rope_theta : config.rope_theta;
  }
  if (!config.dynamic_ntk_factor || length <= config.max_position_embeddings) {
    return config.rope_theta;
  }
  const double f = *config.dynamic_ntk_factor;
  const double stretch = f * double(length) / double(config.max_position_embeddings) - (f - 1);
  const double r = double(config.RotaryDims());
  return config.rope_theta * std::pow(stretch, r / (r - 2));
}

double RopeBase(const ModelConfig& config, int length_budget) {
  return RopeBaseAtLength(
      config, config.dynamic_ntk_factor ? LongestAtRopeBase(config, length_budget) : length_budget);
}

int LongestAtRopeBase(const ModelConfig& config, int length_budget) {
  constexpr int kLargest = std::numeric_limits<int>::max();
  if (config.rope_scaling.kind == RopeScaling::Kind::kLongRope) {
    const double original_length = config.rope_scaling.original_length;
    return double(length_budget) > original_length ? kLargest : int(original_length);
  }
  if (!config.dynamic_ntk_factor) return kLargest;
  int64_t length = config.max_position_embeddings;
  while (length < length_budget) length *= 2;
  return int(std::min(length, int64_t{kLargest}));
}

}  // namespace lssar
