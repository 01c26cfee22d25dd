#include "models/config_fields.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "models/json_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

// Read by ParseConfig.
constexpr std::string_view kRead[] = {
    "activation_function",
    "attention",
    "attention_bias",
    "attention_out_bias",
    "attention_residual_scale",
    "bos_token_id",
    "embedding_norm",
    "eos_token_id",
    "final_logit_softcapping",
    "head_dim",
    "ignored_fields",
    "layer_norm_epsilon",
    "linear_layout",
    "mlp_bias",
    "mlp_kind",
    "mlp_out_bias",
    "mlp_residual_scale",
    "n_embd",
    "n_head",
    "n_inner",
    "n_layer",
    "n_positions",
    "norm_bias",
    "norm_position",
    "norm_weight",
    "nope_layers",
    "normalization",
    "num_key_value_heads",
    "parallel_residual",
    "partial_rotary_factor",
    "positions",
    "qk_norm",
    "rope_layout",
    "rope_scaling",
    "rope_theta",
    "tensor_names",
    "tie_word_embeddings",
    "unpadded_vocab_size",
    "vocab_size",
};

// Names of other programs for our fields. Both may be given, with the same value.
struct Alias {
  std::string_view name;
  std::string_view field;
};
constexpr Alias kAliases[] = {
    // Llama, Gemma, GPT-NeoX of Hugging Face
    {"hidden_size", "n_embd"},
    {"num_hidden_layers", "n_layer"},
    {"num_attention_heads", "n_head"},
    {"intermediate_size", "n_inner"},
    {"max_position_embeddings", "n_positions"},
    {"hidden_act", "activation_function"},
    {"hidden_activation", "activation_function"},
    {"rms_norm_eps", "layer_norm_epsilon"},
    {"layer_norm_eps", "layer_norm_epsilon"},
    {"norm_eps", "layer_norm_epsilon"},
    {"use_parallel_residual", "parallel_residual"},
    {"rotary_pct", "partial_rotary_factor"},
    {"rotary_emb_base", "rope_theta"},
    // GPT-2, nanoGPT, modded-nanogpt, llm.c
    {"n_ctx", "n_positions"},
    {"block_size", "n_positions"},
    {"max_seq_len", "n_positions"},
    {"n_kv_head", "num_key_value_heads"},
    {"model_dim", "n_embd"},
    {"num_layers", "n_layer"},
    {"num_heads", "n_head"},
    {"logit_softcap", "final_logit_softcapping"},
    {"padded_vocab_size", "vocab_size"},
};

// Fields that make another function unless they have this value. `hint`: what to write instead.
struct Fixed {
  std::string_view name;
  std::string_view value;  // JSON
  std::string_view hint = "";
};
constexpr Fixed kFixed[] = {
    // GPT-2
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
    {"is_encoder_decoder", "false"},
    {"tie_encoder_decoder", "false"},
    // nanoGPT, modded-nanogpt, llm.c
    {"bias", "null", "write norm_bias, attention_bias and mlp_bias"},
    {"attn_scale", "null",
     "write attention_residual_scale if it multiplies attention's output; fold it into q if it "
     "multiplies scores"},
    {"learned_positions", "false", "write positions \"learned\""},
    {"value_embeddings", "false"},
    {"value_residual", "false"},
    {"unet_skips", "false"},
    {"x0_lambdas", "null"},
    {"resid_lambdas", "null", "write attention_residual_scale and mlp_residual_scale"},
    // Llama and its family
    {"attn_logit_softcapping", "null"},
    {"sliding_window", "null", "write window in the attention object of a layer"},
    {"sliding_window_pattern", "null", "write window in the attention object of a layer"},
    {"use_sliding_window", "false", "write window in the attention object of a layer"},
    {"layer_types", "null", "write attention as a list of one object a layer"},
    {"attention_chunk_size", "null"},
    {"clip_qkv", "null"},
    {"query_pre_attn_scalar", "null", "fold it into the weights of q"},
    {"attention_multiplier", "null", "fold it into the weights of q"},
    {"embedding_multiplier", "1", "fold it into wte.weight and untie lm_head"},
    {"residual_multiplier", "1", "write attention_residual_scale and mlp_residual_scale"},
    {"logits_scaling", "1", "fold it into lm_head.weight"},
    {"logit_scale", "1", "fold it into lm_head.weight"},
    {"scale_emb", "1", "fold it into wte.weight and untie lm_head"},
    {"scale_depth", "null", "write attention_residual_scale and mlp_residual_scale"},
    {"rope_parameters", "null", "write rope_theta and rope_scaling"},
    {"rope_local_base_freq", "null"},
    {"rope_interleaved", "false", "write rope_layout"},
    {"rotary_interleaved", "false", "write rope_layout"},
    {"rotary_dim", "null", "write partial_rotary_factor"},
    {"no_rope_layers", "null", "write nope_layers"},
    {"no_rope_layer_interval", "null", "write nope_layers"},
    {"use_qk_norm", "false", "write qk_norm as an object"},
    {"qk_layernorm", "false", "write qk_norm as an object"},
    {"qkv_bias", "null", "write attention_bias"},
    {"skip_bias_add_qkv", "false"},
    {"slow_but_exact", "false"},  // with pretraining_tp, transformers leaves biases out
    {"use_mrope", "false"},
    {"use_bias", "null", "write norm_bias, attention_bias and mlp_bias"},
    {"lm_head_bias", "false"},
    {"num_experts", "0"},
    {"num_local_experts", "0"},
    {"n_routed_experts", "0"},
    {"num_experts_per_tok", "0"},
    // GPT-NeoX, Falcon, MPT, BLOOM
    {"alibi", "false", "write positions \"alibi\""},
    {"rotary", "true"},
    {"parallel_attn", "null", "write parallel_residual"},
    {"multi_query", "false", "write num_key_value_heads"},
    {"new_decoder_architecture", "false"},
    {"position_embedding_type", "\"rope\"", "write positions"},
    {"apply_residual_connection_post_layernorm", "false"},
    {"norm_type", "null", "write normalization"},
    {"normalization_type", "null", "write normalization"},
    {"use_rms_norm", "null", "write normalization"},
    {"use_post_norm", "false", "write norm_position"},
    {"layernorm_embedding", "false", "write embedding_norm"},
    {"mlp", "null", "write mlp_kind"},
    {"glu", "null", "write mlp_kind"},
};

// Training, bookkeeping and switches of other programs: they change nothing that we compute.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "attn_pdrop",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cls_token_id",
    "cross_attention_hidden_size",
    "custom_pipelines",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dropout",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "mask_token_id",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

template <typename Row, size_t count>
const Row* FindRow(const Row (&rows)[count], std::string_view name) {
  for (const Row& row : rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

template <size_t count>
bool Contains(const std::string_view (&names)[count], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

void CheckAlias(const Alias& alias, const json& value, const json& config, JsonFields* fields) {
  const auto ours = config.find(alias.field);
  if (ours == config.end() || ours->is_null()) {
    fields->Fail(StrCat(alias.name, " is ", QuoteJson(value), ": write it as ", alias.field,
                        ", the name here"));
  } else if (*ours != value) {
    fields->Fail(StrCat(alias.name, " is ", QuoteJson(value), ", but ", alias.field, " is ",
                        QuoteJson(*ours), "; they must be equal"));
  }
}

void CheckFixed(const Fixed& fixed, const json& value, JsonFields* fields) {
  if (value == json::parse(fixed.value)) return;
  fields->Fail(StrCat(fixed.name, " is ", QuoteJson(value),
                      ", which no backend computes; it must be ", fixed.value, " or absent",
                      fixed.hint.empty() ? "" : StrCat(" (", fixed.hint, ")")));
}

}  // namespace

bool IsHarmlessField(std::string_view name) { return Contains(kHarmless, name); }

bool IsFixedField(std::string_view name) { return FindRow(kFixed, name) != nullptr; }

std::string_view OurFieldOf(std::string_view name) {
  if (Contains(kRead, name)) return name;
  const Alias* const alias = FindRow(kAliases, name);
  return alias == nullptr ? std::string_view() : alias->field;
}

std::vector<std::string> ReadIgnoredFields(const json& config, JsonFields* fields) {
  std::vector<std::string> ignored;
  const json* names = fields->Array("ignored_fields");
  if (names == nullptr) return ignored;
  for (const json& name : *names) {
    if (!name.is_string()) {
      fields->Fail(StrCat("ignored_fields holds ", QuoteJson(name), ", must hold names of fields"));
      break;
    }
    ignored.push_back(name.get<std::string>());
    const std::string& field = ignored.back();
    if (!OurFieldOf(field).empty() || IsFixedField(field)) {
      fields->Fail(StrCat("ignored_fields names ", field,
                          ", which changes what the model computes; it cannot be ignored"));
    } else if (!config.contains(field)) {
      fields->Fail(StrCat("ignored_fields names ", field, ", which config.json does not have"));
    }
  }
  return ignored;
}

absl::Status CheckOtherFields(const json& config, std::string_view source) {
  JsonFields fields(config, std::string(source));
  const std::vector<std::string> ignored = ReadIgnoredFields(config, &fields);
  std::vector<std::string> unknown, shown;
  for (const auto& [name, value] : config.items()) {
    if (value.is_null() || Contains(kRead, name) || Contains(kHarmless, name)) continue;
    if (const Alias* alias = FindRow(kAliases, name)) {
      CheckAlias(*alias, value, config, &fields);
    } else if (const Fixed* fixed = FindRow(kFixed, name)) {
      CheckFixed(*fixed, value, &fields);
    } else if (std::ranges::find(ignored, name) == ignored.end()) {
      unknown.push_back(name);
      shown.push_back(StrCat("\"", ShortName(name), "\" (", QuoteJson(value), ")"));
    }
  }
  if (!unknown.empty()) {
    const auto quote = [](const std::string& name) { return StrCat("\"", ShortName(name), "\""); };
    fields.Fail(StrCat("unknown field ", StrJoin(shown),
                       ": it may change what the model computes. If it does not, add "
                       "\"ignored_fields\": [",
                       StrJoin(unknown, quote), "]; models/README.md lists the known fields"));
  }
  return fields.status();
}

}  // namespace lssar
