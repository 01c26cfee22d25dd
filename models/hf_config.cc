#include "models/hf_config.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/config_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

struct Name {
  std::string_view theirs, ours;
};

// What a field must be, where another value computes something else.
struct Fixed {
  std::string_view name;
  json value;
};

// A model_type: its fields under our names, its defaults and what its code computes.
struct Family {
  std::string_view model_type;
  std::vector<Name> names;
  json defaults;  // of transformers' configuration class, in our fields
  json fixed;     // what its code computes, in our fields
};

const std::vector<Name>& LlamaNames() {
  static const std::vector<Name> names{{"hidden_size", "n_embd"},
                                       {"num_hidden_layers", "n_layer"},
                                       {"num_attention_heads", "n_head"},
                                       {"num_key_value_heads", "num_key_value_heads"},
                                       {"head_dim", "head_dim"},
                                       {"intermediate_size", "n_inner"},
                                       {"max_position_embeddings", "n_positions"},
                                       {"rms_norm_eps", "layer_norm_epsilon"},
                                       {"hidden_act", "activation_function"},
                                       {"rope_theta", "rope_theta"}};
  return names;
}

std::vector<Name> LlamaNamesAnd(std::initializer_list<Name> more) {
  std::vector<Name> names = LlamaNames();
  names.insert(names.end(), more);
  return names;
}

const std::vector<Family>& Families() {
  static const std::vector<Family> families = [] {
    const json defaults = {{"activation_function", "silu"},
                           {"layer_norm_epsilon", 1e-6},
                           {"tie_word_embeddings", false},
                           {"rope_theta", 10000.0}};
    const json llama = {{"tensor_names", "llama"}, {"normalization", "rms_norm"},
                        {"mlp_kind", "gated"},     {"attention_bias", false},
                        {"mlp_bias", false},       {"rope_layout", "half"}};
    const auto with = [](json object, const json& more) {
      object.update(more);
      return object;
    };
    const json neox_defaults = {{"activation_function", "gelu"}, {"layer_norm_epsilon", 1e-5},
                                {"rope_theta", 10000.0},         {"partial_rotary_factor", 0.25},
                                {"parallel_residual", true},     {"tie_word_embeddings", false},
                                {"attention_bias", true}};
    const json qk_norm = {{"kind", "rms_norm"}, {"position", "before_rotary"}, {"weight", true}};
    return std::vector<Family>{
        {"llama", LlamaNamesAnd({{"attention_bias", "attention_bias"}, {"mlp_bias", "mlp_bias"}}),
         defaults, llama},
        {"mistral", LlamaNames(), defaults, llama},
        {"qwen2", LlamaNames(), defaults,
         with(llama, {{"attention_bias", true}, {"attention_out_bias", false}})},
        {"qwen3", LlamaNamesAnd({{"attention_bias", "attention_bias"}}),
         with(defaults, {{"head_dim", 128}}), with(llama, {{"qk_norm", qk_norm}})},
        {"gpt_neox",
         {{"hidden_size", "n_embd"},
          {"num_hidden_layers", "n_layer"},
          {"num_attention_heads", "n_head"},
          {"intermediate_size", "n_inner"},
          {"max_position_embeddings", "n_positions"},
          {"layer_norm_eps", "layer_norm_epsilon"},
          {"hidden_act", "activation_function"},
          {"rotary_emb_base", "rope_theta"},
          {"rope_theta", "rope_theta"},
          {"rotary_pct", "partial_rotary_factor"},
          {"partial_rotary_factor", "partial_rotary_factor"},
          {"use_parallel_residual", "parallel_residual"},
          {"attention_bias", "attention_bias"}},
         neox_defaults,
         {{"tensor_names", "gpt_neox"}, {"normalization", "layer_norm"}, {"rope_layout", "half"}}},
    };
  }();
  return families;
}

// Of every family.
constexpr Name kCommon[] = {{"vocab_size", "vocab_size"},
                            {"tie_word_embeddings", "tie_word_embeddings"},
                            {"bos_token_id", "bos_token_id"},
                            {"eos_token_id", "eos_token_id"}};

const std::vector<Fixed>& FixedFields() {
  static const std::vector<Fixed> fields{
      {"scale_attn_weights", true},   {"scale_attn_by_inverse_layer_idx", false},
      {"add_cross_attention", false}, {"is_encoder_decoder", false},
      {"rope_interleaved", false},    {"use_sliding_window", false},
      {"use_mrope", false},           {"tie_encoder_decoder", false}};
  return fields;
}

// Of these families alone they change nothing: use_sliding_window and layer_types say whether they
// are used.
bool IsUnusedWindow(std::string_view name, std::string_view model_type) {
  return model_type.starts_with("qwen") &&
         (name == "sliding_window" || name == "max_window_layers");
}

json Activation(const json& name) {
  if (name == "gelu_fast") return "gelu_new";
  if (name == "swish") return "silu";
  return name;
}

// transformers 4: rope_scaling beside rope_theta. transformers 5: rope_parameters, with rope_theta
// and partial_rotary_factor among the others.
void ReadRope(const json& given, const json& config, json* ours) {
  json scaling = given;
  for (const std::string_view name : {"rope_theta", "partial_rotary_factor"}) {
    const auto found = scaling.find(name);
    if (found == scaling.end()) continue;
    (*ours)[std::string(name)] = *found;
    scaling.erase(found);
  }
  const json type = scaling.contains("rope_type") ? scaling["rope_type"]
                    : scaling.contains("type")    ? scaling["type"]
                                                  : json("default");
  if (type == "default") {
    (*ours)["rope_scaling"] = nullptr;
    return;
  }
  scaling.erase("type");
  scaling["rope_type"] = type == "su" ? json("longrope") : type;
  // transformers takes the length of dynamic NTK and of linear scaling from the config.
  if (type == "linear" || type == "dynamic") scaling.erase("original_max_position_embeddings");
  const auto length = config.find("original_max_position_embeddings");
  if (length != config.end() && !scaling.contains("original_max_position_embeddings")) {
    scaling["original_max_position_embeddings"] = *length;
  }
  (*ours)["rope_scaling"] = std::move(scaling);
}

}  // namespace

bool IsHuggingFaceConfig(const json& config) {
  if (!config.is_object() || !config.contains("model_type")) return false;
  const auto attention = config.find("attention");
  return (attention == config.end() || attention->is_null()) &&
         std::ranges::any_of(Families(), [&](const Family& family) {
           return config["model_type"] == std::string(family.model_type);
         });
}

absl::StatusOr<json> FromHuggingFaceConfig(const json& config, std::string_view source) {
  const Family& family = *std::ranges::find_if(Families(), [&](const Family& each) {
    return config["model_type"] == std::string(each.model_type);
  });
  JsonFields fields(config, std::string(source));
  json ours = family.defaults;
  ours.update(family.fixed);
  ours["attention"] = {{"kind", "softmax"}};
  std::vector<std::string> ignored;
  if (const json* names = fields.Array("ignored_fields")) {
    for (const json& name : *names)
      ignored.push_back(name.is_string() ? name.get<std::string>() : "");
  }
  std::vector<std::string> unknown;
  for (const auto& [name, value] : config.items()) {
    if (value.is_null() || name == "model_type" || name == "ignored_fields") continue;
    const auto is_named = [&](const Name& each) { return each.theirs == name; };
    const auto common = std::ranges::find_if(kCommon, is_named);
    const auto own = std::ranges::find_if(family.names, is_named);
    const auto fixed = std::ranges::find(FixedFields(), name, &Fixed::name);
    if (common != std::end(kCommon) || own != family.names.end()) {
      const std::string_view field = common != std::end(kCommon) ? common->ours : own->ours;
      ours[std::string(field)] = field == "activation_function" ? Activation(value) : value;
    } else if (fixed != FixedFields().end()) {
      if (value != fixed->value) {
        fields.Fail(StrCat(name, " is ", QuoteJson(value), ", which is not computed; it must be ",
                           fixed->value.dump()));
      }
    } else if (name == "rope_parameters" || name == "rope_scaling") {
      if (!value.is_object()) fields.Fail(StrCat(name, " must be an object"));
    } else if (name == "original_max_position_embeddings") {
      if (!config.contains("rope_scaling") && !config.contains("rope_parameters")) {
        unknown.push_back(name);
      }
    } else if (name == "sliding_window" && !IsUnusedWindow(name, family.model_type)) {
      const json length = config.value("max_position_embeddings", json());
      const bool is_wide = value.is_number() && length.is_number() && value >= length;
      if (!is_wide) {
        fields.Fail(StrCat("sliding_window is ", QuoteJson(value),
                           ", which no backend computes; a text of at most ",
                           "so many tokens does not need it: write \"max_position_embeddings\": ",
                           QuoteJson(value), " to serve the model up to that length"));
      }
    } else if (name == "layer_types") {
      const auto is_full = [](const json& type) { return type == "full_attention"; };
      if (!value.is_array() || !std::ranges::all_of(value, is_full)) {
        fields.Fail("layer_types must be full_attention in each layer; no backend computes others");
      }
    } else if (!IsUnusedWindow(name, family.model_type) && !IsHarmlessField(name) &&
               std::ranges::find(ignored, name) == ignored.end()) {
      unknown.push_back(name);
    }
  }
  if (!unknown.empty()) {
    const auto quote = [](const std::string& name) { return StrCat("\"", ShortName(name), "\""); };
    const std::string list = StrJoin(unknown, quote);
    fields.Fail(StrCat("unknown fields of model_type ", std::string(family.model_type), ": ", list,
                       ". They may change what the model computes. If they do not, add "
                       "\"ignored_fields\": [",
                       list, "]"));
  }
  for (const char* const name : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(name);
    if (found != config.end() && found->is_object()) ReadRope(*found, config, &ours);
  }
  RETURN_IF_ERROR(fields.status());
  return ours;
}

}  // namespace lssar
