#include "models/hf_config.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/config_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

struct Name {
  std::string_view theirs, ours;
};

// Which layers of a family have the window of sliding_window, where layer_types does not say.
enum class Window : uint8_t {
  kNone,       // its code knows no window
  kAll,        // mistral
  kLater,      // those from max_window_layers on, with use_sliding_window
  kNopeLayers  // those without positions, with use_sliding_window
};

// A model_type: its fields under our names, its defaults and what its code computes.
struct Family {
  std::string_view model_type;
  std::vector<Name> names;
  json defaults;  // of transformers' configuration class, in our fields
  json fixed;     // what its code computes, in our fields
  Window window = Window::kNone;
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
        {"mistral", LlamaNames(), defaults, llama, Window::kAll},
        {"qwen2", LlamaNames(), defaults,
         with(llama, {{"attention_bias", true}, {"attention_out_bias", false}}), Window::kLater},
        {"qwen3", LlamaNamesAnd({{"attention_bias", "attention_bias"}}),
         with(defaults, {{"head_dim", 128}}), with(llama, {{"qk_norm", qk_norm}}), Window::kLater},
        {"smollm3", LlamaNamesAnd({{"attention_bias", "attention_bias"}, {"mlp_bias", "mlp_bias"}}),
         with(defaults, {{"rope_theta", 2e6}, {"tie_word_embeddings", true}}), llama,
         Window::kNopeLayers},
        {"gpt2",
         {{"n_embd", "n_embd"},
          {"n_layer", "n_layer"},
          {"n_head", "n_head"},
          {"n_positions", "n_positions"},
          {"n_inner", "n_inner"},
          {"n_ctx", "n_ctx"},  // must equal n_positions (config_fields)
          {"layer_norm_epsilon", "layer_norm_epsilon"},
          {"activation_function", "activation_function"}},
         {{"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5},
          {"tie_word_embeddings", true}},
         {{"tensor_names", "gpt2"},
          {"normalization", "layer_norm"},
          {"positions", "learned"},
          {"linear_layout", "conv1d"}}},
        // The published models were trained on 2,048 tokens; ALiBi goes on beyond.
        {"bloom",
         {{"hidden_size", "n_embd"},
          {"n_embed", "n_embd"},
          {"n_layer", "n_layer"},
          {"num_hidden_layers", "n_layer"},
          {"n_head", "n_head"},
          {"num_attention_heads", "n_head"},
          {"seq_length", "n_positions"},
          {"layer_norm_epsilon", "layer_norm_epsilon"}},
         {{"layer_norm_epsilon", 1e-5}, {"n_positions", 2048}, {"tie_word_embeddings", true}},
         {{"tensor_names", "bloom"},
          {"normalization", "layer_norm"},
          {"positions", "alibi"},
          {"embedding_norm", true},
          {"activation_function", "gelu_new"}}},
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

// Fields of every family.
constexpr Name kCommon[] = {{"vocab_size", "vocab_size"},
                            {"tie_word_embeddings", "tie_word_embeddings"},
                            {"bos_token_id", "bos_token_id"},
                            {"eos_token_id", "eos_token_id"}};

// Fields of BLOOM that say how the same is computed.
constexpr std::string_view kHarmlessOfBloom[] = {"attention_softmax_in_fp32",
                                                 "bias_dropout_fusion",
                                                 "masked_softmax_fusion",
                                                 "n_inner",
                                                 "offset_alibi",
                                                 "skip_bias_add"};

// Read by ReadLayers.
bool IsLayerField(std::string_view name, Window window) {
  for (const char* const of_all :
       {"sliding_window", "use_sliding_window", "layer_types", "max_window_layers"}) {
    if (name == of_all) return true;
  }
  return window == Window::kNopeLayers &&
         (name == "no_rope_layers" || name == "no_rope_layer_interval");
}

// Which layers have no positions, of smollm3.
std::vector<bool> NopeLayers(size_t num_layers, JsonFields* fields) {
  std::vector<bool> is_nope(num_layers, false);
  if (const json* const list = fields->Array("no_rope_layers")) {
    const auto is_flag = [](const json& flag) { return flag == 0 || flag == 1; };
    if (list->size() < num_layers || !std::ranges::all_of(*list, is_flag)) {
      fields->Fail(StrCat("no_rope_layers is ", QuoteJson(*list), ", must have 0 or 1 for each of ",
                          num_layers, " layers"));
      return is_nope;
    }
    for (size_t i = 0; i < num_layers; ++i) is_nope[i] = (*list)[i] == 0;
  } else {
    const auto interval = size_t(fields->Int("no_rope_layer_interval", 1, kMaxLayers, 4));
    for (size_t i = 0; i < num_layers; ++i) is_nope[i] = (i + 1) % interval == 0;
  }
  return is_nope;
}

// A family without windows: the fields may be there if they change nothing.
void CheckNoWindow(const json& config, JsonFields* fields) {
  if (fields->Bool("use_sliding_window", false)) {
    fields->Fail("use_sliding_window is true, which is not computed; it must be false");
  }
  const json length = config.value("max_position_embeddings", json());
  const json window = config.value("sliding_window", json());
  const bool is_used = config.value("use_sliding_window", json()) != false;
  if (!window.is_null() && is_used &&
      !(window.is_number() && length.is_number() && window >= length)) {
    fields->Fail(StrCat("sliding_window is ", QuoteJson(window),
                        ", which is not computed for this model_type; a text of at most so many "
                        "tokens does not need it: write \"max_position_embeddings\": ",
                        QuoteJson(window), " to serve the model up to that length"));
  }
  const auto is_full = [](const json& type) { return type == "full_attention"; };
  const json* const types = fields->Array("layer_types");
  if (types != nullptr && !std::ranges::all_of(*types, is_full)) {
    fields->Fail("layer_types must be full_attention in each layer of this model_type");
  }
}

// What differs between layers: "attention" with windows, and "nope_layers".
void ReadLayers(const json& config, Window window, JsonFields* fields, json* ours) {
  if (window == Window::kNone) return CheckNoWindow(config, fields);
  const json count = ours->value("n_layer", json());
  if (!count.is_number_unsigned() || count > kMaxLayers) return;  // ParseConfig says so
  const auto num_layers = count.get<size_t>();
  std::vector<bool> is_nope(num_layers, false);
  if (window == Window::kNopeLayers) {
    is_nope = NopeLayers(num_layers, fields);
    json layers = json::array();
    for (size_t i = 0; i < num_layers; ++i) {
      if (is_nope[i]) layers.push_back(i);
    }
    if (!layers.empty()) (*ours)["nope_layers"] = layers;
  }
  const bool is_used = window == Window::kAll || fields->Bool("use_sliding_window", false);
  const int64_t absent =  // transformers' default; null is no window
      config.contains("sliding_window") || window == Window::kNopeLayers ? 0 : 4096;
  const int64_t length = is_used ? fields->Int("sliding_window", 1, kMaxWindow, absent) : 0;
  const auto first = window == Window::kLater
                         ? size_t(fields->Int("max_window_layers", 0, kMaxLayers, 28))
                         : size_t{0};
  const json* const types = fields->Array("layer_types");
  if (types != nullptr && types->size() != num_layers) {
    fields->Fail(StrCat("layer_types has ", types->size(), " elements, must have one for each of ",
                        num_layers, " layers"));
    return;
  }
  json attention = json::array();
  for (size_t i = 0; i < num_layers; ++i) {
    bool has_window = length > 0 && i >= first && (window != Window::kNopeLayers || is_nope[i]);
    if (types != nullptr) {
      const json& type = (*types)[i];
      const bool is_sliding = type == "sliding_attention";
      if ((!is_sliding && type != "full_attention") || (is_sliding && length == 0) ||
          (window == Window::kAll && is_sliding != has_window)) {
        fields->Fail(StrCat("layer_types holds ", QuoteJson(type), " for layer ", i,
                            length > 0 ? ", with" : ", without", " a sliding window; the code of ",
                            "this model_type does not compute that"));
        return;
      }
      has_window = is_sliding;
    }
    attention.push_back({{"kind", "softmax"}});
    if (has_window) attention.back()["window"] = length;
  }
  (*ours)["attention"] = attention;
}

json ActivationName(const json& name) {
  if (name == "gelu_fast") return "gelu_new";
  if (name == "swish") return "silu";
  return name;
}

// What the code of a family computes by a field that its class does not read. null: nothing.
json ComputedValue(std::string_view field, const json& ours) {
  const std::string name(field);
  if (ours.contains(name)) return ours[name];
  const bool is_rotary = ours.value("positions", "rotary") == "rotary";
  if (field == "partial_rotary_factor") return is_rotary ? json(1) : json();
  if (field == "num_key_value_heads") return ours.value("n_head", json());
  if (field == "attention_bias" || field == "mlp_bias") return true;
  if (field == "attention_out_bias") return ComputedValue("attention_bias", ours);
  if (field == "mlp_out_bias") return ComputedValue("mlp_bias", ours);
  if (field == "embedding_norm" || field == "parallel_residual") return false;
  if (field == "attention_residual_scale" || field == "mlp_residual_scale") return 1;
  if (field == "unpadded_vocab_size") return ours.value("vocab_size", json());
  const json size = ours.value("n_embd", json()), heads = ours.value("n_head", json());
  const bool has_sizes = size.is_number_unsigned() && heads.is_number_unsigned() && heads != 0;
  if (!has_sizes || size > (1 << 20)) return json();
  if (field == "n_inner") return 4 * size.get<uint64_t>();
  const bool is_even = size.get<uint64_t>() % heads.get<uint64_t>() == 0;
  return field == "head_dim" && is_even ? json(size.get<uint64_t>() / heads.get<uint64_t>())
                                        : json();
}

// A field that this project knows and that the class of the family does not read: it may only say
// what is computed anyway.
void CheckComputed(const std::string& name, const json& value, std::string_view model_type,
                   const json& ours, JsonFields* fields) {
  const std::string_view field = OurFieldOf(name);
  const json computed = ComputedValue(field, ours);
  const json given = field == "activation_function" ? ActivationName(value) : value;
  if (!computed.is_null() && given == computed) return;
  fields->Fail(StrCat(name, " is ", QuoteJson(value), ", but the code of model_type ", model_type,
                      computed.is_null() ? " does not read it; it must be absent"
                                         : StrCat(" computes ", QuoteJson(computed),
                                                  "; it must be that or absent")));
}

// Takes the fields out of transformers 5's rope_parameters that older configs have outside.
// `names_of`: their names there, by ours.
void TakeRopeFields(const Family& family, const json& config,
                    const std::map<std::string, std::string>& names_of, json* rope,
                    JsonFields* fields, json* ours) {
  for (const std::string name : {"rope_theta", "partial_rotary_factor"}) {
    const auto found = rope->find(name);
    if (found == rope->end()) continue;
    if (found->is_null()) {
      rope->erase(found);
      continue;
    }
    const auto outside = names_of.find(name);
    if (outside != names_of.end() && config[outside->second] != *found) {
      fields->Fail(StrCat(outside->second, " is ", QuoteJson(config[outside->second]), ", but ",
                          name, " is ", QuoteJson(*found),
                          " in rope_parameters; they must be equal"));
    }
    if (std::ranges::find(family.names, name, &Name::ours) != family.names.end()) {
      (*ours)[name] = *found;
    } else if (*found != 1) {  // its code rotates whole heads
      fields->Fail(StrCat("rope_parameters holds ", name, " ", QuoteJson(*found),
                          ", which this model_type does not compute; it must be 1"));
    }
    rope->erase(found);
  }
}

// rope_scaling, or what is left of rope_parameters.
void ReadRope(json scaling, const json& config, JsonFields* fields, json* ours) {
  if (!scaling.contains("rope_type") && !scaling.contains("type") && scaling.contains("factor")) {
    (*ours)["rope_scaling"] = scaling;  // refused for want of its type: a factor changes much
    return;
  }
  const json type = scaling.contains("rope_type") ? scaling["rope_type"]
                    : scaling.contains("type")    ? scaling["type"]
                                                  : json("default");
  scaling.erase("type");
  if (type == "default") {
    scaling.erase("rope_type");
    if (!scaling.empty()) {  // or parameters of each kind of layer
      fields->Fail(StrCat("rope_parameters holds \"", ShortName(scaling.begin().key()),
                          "\", which is not computed without a rope_type"));
    }
    (*ours)["rope_scaling"] = nullptr;
    return;
  }
  scaling["rope_type"] = type == "su" ? json("longrope") : type;
  // transformers takes the length of dynamic NTK and of linear scaling from the config.
  if (type == "linear" || type == "dynamic") scaling.erase("original_max_position_embeddings");
  const auto length = config.find("original_max_position_embeddings");
  if (length != config.end() && !length->is_null()) {
    const auto [own, is_new] = scaling.emplace("original_max_position_embeddings", *length);
    if (*own != *length) {  // transformers 4 takes one of them, transformers 5 the other
      fields->Fail(StrCat("original_max_position_embeddings is ", Shorten(length->dump(), 24),
                          ", but ", Shorten(own->dump(), 24),
                          " in rope_scaling; they must be equal"));
    }
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

absl::Status CheckModelType(const json& config, std::string_view source) {
  if (!config.is_object() || config.contains("attention") || config.contains("n_layer")) {
    return absl::OkStatus();
  }
  const json type = config.value("model_type", json());
  if (!type.is_string() || type == "lssar_gpt" || !config.contains("num_hidden_layers")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat(
      source, ": model_type is ", QuoteJson(type), ", which is not computed; it must be one of ",
      StrJoin(Families(), [](const Family& family) { return family.model_type; }),
      ", or config.json must have this project's fields (models/README.md)"));
}

absl::StatusOr<json> FromHuggingFaceConfig(const json& config, std::string_view source) {
  const Family& family = *std::ranges::find_if(Families(), [&](const Family& each) {
    return config["model_type"] == std::string(each.model_type);
  });
  JsonFields fields(config, std::string(source));
  json ours = family.defaults;
  ours.update(family.fixed);
  ours["attention"] = {{"kind", "softmax"}};
  const std::vector<std::string> ignored = ReadIgnoredFields(config, &fields);
  std::vector<std::string> unknown, not_read;
  std::map<std::string, std::string> names_of;  // of the fields so far: their names by ours
  for (const auto& [name, value] : config.items()) {
    if (value.is_null() || name == "model_type" || name == "ignored_fields") continue;
    const auto is_named = [&](const Name& each) { return each.theirs == name; };
    const auto common = std::ranges::find_if(kCommon, is_named);
    const auto own = std::ranges::find_if(family.names, is_named);
    if (common != std::end(kCommon) || own != family.names.end()) {
      const std::string field(common != std::end(kCommon) ? common->ours : own->ours);
      const auto [first, is_first] = names_of.emplace(field, name);
      if (!is_first && config[first->second] != value) {
        fields.Fail(StrCat(first->second, " is ", QuoteJson(config[first->second]), ", but ", name,
                           " is ", QuoteJson(value), "; they must be equal"));
      }
      ours[field] = field == "activation_function" ? ActivationName(value) : value;
    } else if (name == "rope_parameters" || name == "rope_scaling") {
      if (!value.is_object()) fields.Fail(StrCat(name, " must be an object"));
    } else if (name == "original_max_position_embeddings") {
      if (!config.contains("rope_scaling") && !config.contains("rope_parameters")) {
        unknown.push_back(name);
      }
    } else if (IsLayerField(name, family.window) || IsHarmlessField(name) ||
               (family.model_type == "bloom" && std::ranges::count(kHarmlessOfBloom, name) > 0)) {
      continue;
    } else if (IsFixedField(name)) {
      ours[name] = value;  // CheckOtherFields refuses all values but one
    } else if (!OurFieldOf(name).empty()) {
      not_read.push_back(name);
    } else if (std::ranges::find(ignored, name) == ignored.end()) {
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
  const json scaling = config.value("rope_scaling", json());
  const json parameters = config.value("rope_parameters", json());
  if (!scaling.empty() && !parameters.empty() && scaling != parameters) {
    fields.Fail("rope_scaling and rope_parameters must be equal, or one of them absent");
  }
  if (json rope = scaling.empty() ? parameters : scaling; rope.is_object()) {
    TakeRopeFields(family, config, names_of, &rope, &fields, &ours);
    ReadRope(std::move(rope), config, &fields, &ours);
  }
  ReadLayers(config, family.window, &fields, &ours);
  for (const std::string& name : not_read) {
    CheckComputed(name, config[name], family.model_type, ours, &fields);
  }
  RETURN_IF_ERROR(fields.status());
  return ours;
}

}  // namespace lssar
