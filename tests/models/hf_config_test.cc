#include "models/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "kernels/float_bits.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "models/tensor_source.h"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MessageOf;
using ::testing::Not;

// SmolLM2-135M-Instruct's fields.
json Smol() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"hidden_act", "silu"},
          {"hidden_size", 576},
          {"initializer_range", 0.041666666666666664},
          {"intermediate_size", 1536},
          {"is_llama_config", true},
          {"max_position_embeddings", 8192},
          {"mlp_bias", false},
          {"model_type", "llama"},
          {"num_attention_heads", 9},
          {"num_hidden_layers", 30},
          {"num_key_value_heads", 3},
          {"pad_token_id", 2},
          {"pretraining_tp", 1},
          {"rms_norm_eps", 1e-05},
          {"rope_interleaved", false},
          {"rope_scaling", nullptr},
          {"rope_theta", 100000},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"transformers.js_config", {{"kv_cache_dtype", {{"fp16", "float16"}}}}},
          {"transformers_version", "4.42.3"},
          {"use_cache", true},
          {"vocab_size", 49152}};
}

std::string RejectionOf(const json& config) {
  const auto parsed = ParseConfig(config.dump(), "dir/config.json");
  EXPECT_FALSE(parsed.ok()) << config;
  return parsed.ok() ? "" : MessageOf(parsed.status());
}

TEST(HfConfigTest, SmolLm2) {
  const auto config = ParseConfig(Smol().dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->NumKvHeads(), 3);
  EXPECT_EQ(config->intermediate_size, 1536);
  EXPECT_EQ(config->norm_kind, NormKind::kRmsNorm);
  EXPECT_EQ(config->mlp_kind, ModelConfig::MlpKind::kGated);
  EXPECT_EQ(config->AttentionNames(), "softmax");
  EXPECT_EQ(config->rope_theta, 1e5);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->attention_bias || config->mlp_bias);
  EXPECT_TRUE(config->IsEos(2) && !config->IsEos(1));
}

TEST(HfConfigTest, FieldsOfTransformers5AndListsOfEos) {
  json config = Smol();
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["rope_parameters"] = {
      {"rope_theta", 5e5},       {"rope_type", "llama3"},
      {"factor", 8.0},           {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 2048}};
  config["eos_token_id"] = {2, 7};
  const auto parsed = ParseConfig(config.dump(), "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rope_theta, 5e5);
  EXPECT_EQ(parsed->rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(parsed->rope_scaling.original_length, 2048);
  EXPECT_TRUE(parsed->IsEos(2) && parsed->IsEos(7) && !parsed->IsEos(1));
}

TEST(HfConfigTest, Rejections) {
  json config = Smol();
  config["zeta"] = 1;
  config["alpha"] = {1, 2};
  EXPECT_THAT(RejectionOf(config),
              AllOf(HasSubstr("\"alpha\", \"zeta\""), HasSubstr("\"ignored_fields\": [\"alpha\"")));
  config["ignored_fields"] = {"zeta", "alpha"};
  EXPECT_TRUE(ParseConfig(config.dump(), "config.json").ok());
  const auto with = [](const char* name, const json& value) {
    json changed = Smol();
    changed[name] = value;
    return RejectionOf(changed);
  };
  // What changes the function cannot be ignored, nor is it suggested.
  for (const char* const name : {"attn_logit_softcapping", "clip_qkv"}) {
    json changed = Smol();
    changed[name] = 50;
    EXPECT_THAT(RejectionOf(changed), AllOf(HasSubstr(StrCat(name, " is 50, which no backend")),
                                            Not(HasSubstr("ignored_fields"))));
    changed["ignored_fields"] = {name};
    EXPECT_THAT(RejectionOf(changed), HasSubstr("it cannot be ignored"));
  }
  EXPECT_THAT(with("ignored_fields", {"no_such"}), HasSubstr("config.json does not have"));
  EXPECT_THAT(with("ignored_fields", {7}), HasSubstr("must hold names of fields"));
  json harmless = Smol();
  harmless.update({{"attn_logit_softcapping", nullptr}, {"use_mrope", false}});
  EXPECT_TRUE(ParseConfig(harmless.dump(), "config.json").ok());
  EXPECT_THAT(with("rope_interleaved", true), HasSubstr("rope_interleaved is true"));
  EXPECT_THAT(with("sliding_window", 4096), HasSubstr("sliding_window is 4096"));
  EXPECT_THAT(with("layer_types", {"full_attention", "sliding_attention"}),
              HasSubstr("layer_types"));
  EXPECT_THAT(with("quantization_config", json::object()), HasSubstr("quantization_config"));
  EXPECT_THAT(with("rope_scaling", {{"rope_type", "mrope"}}), HasSubstr("rope_type is \"mrope\""));
  EXPECT_THAT(with("rope_scaling", {{"factor", 2}}), HasSubstr("rope_scaling"));
  EXPECT_THAT(with("rope_scaling", {{"type", "yarn"}, {"factor", 0.5}}), HasSubstr("factor"));
  EXPECT_THAT(with("rope_scaling", {{"type", "longrope"}, {"short_factor", {1}}}),
              HasSubstr("short_factor must have 32 numbers"));
  // Logarithms that would divide by zero.
  const json factors(32, 1);
  EXPECT_THAT(with("rope_scaling", {{"type", "longrope"},
                                    {"short_factor", factors},
                                    {"long_factor", factors},
                                    {"original_max_position_embeddings", 1}}),
              HasSubstr("original_max_position_embeddings is 1, must be at least 2"));
  // One length in two places.
  json twice = Smol();
  twice["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}};
  for (const json& same : {json(2048), json(nullptr)}) {
    twice["original_max_position_embeddings"] = same;
    EXPECT_TRUE(ParseConfig(twice.dump(), "config.json").ok());
  }
  twice["original_max_position_embeddings"] = 4096;
  EXPECT_THAT(RejectionOf(twice), HasSubstr("original_max_position_embeddings is 4096, but 2048 in "
                                            "rope_scaling; they must be equal"));
  const auto rope = [](const json& parameters) {
    json changed = Smol();
    changed.erase("rope_theta");
    changed["rope_parameters"] = parameters;
    return RejectionOf(changed);
  };
  EXPECT_THAT(rope({{"rope_type", "yarn"}, {"factor", 2}, {"rope_theta", 1}}),
              HasSubstr("type yarn needs a rope_theta above 1"));
  EXPECT_THAT(rope({{"full_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}}}),
              HasSubstr("holds \"full_attention\""));
  EXPECT_THAT(with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}),
              HasSubstr("rope_theta is 100000, but rope_theta is 500000.0 in rope_parameters"));
  EXPECT_THAT(rope({{"rope_type", "default"}, {"rope_theta", 5e5}, {"partial_rotary_factor", 0.5}}),
              HasSubstr("partial_rotary_factor 0.5, which this model_type does not compute"));
  json whole = Smol();
  whole.erase("rope_theta");
  whole["rope_parameters"] = {{"rope_theta", 5e5}, {"partial_rotary_factor", 1.0}};
  EXPECT_TRUE(ParseConfig(whole.dump(), "config.json").ok());
  json two = Smol();
  two["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  two["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_THAT(RejectionOf(two), HasSubstr("rope_scaling and rope_parameters must be equal"));
  json wide = Smol();
  wide["sliding_window"] = 8192;
  EXPECT_TRUE(ParseConfig(wide.dump(), "config.json").ok());
  wide.update({{"sliding_window", 32}, {"use_sliding_window", false}});
  EXPECT_TRUE(ParseConfig(wide.dump(), "config.json").ok());
}

TEST(HfConfigTest, AFieldThatAClassDoesNotReadMaySayWhatIsComputed) {
  const auto with = [](const json& base, const char* name, const json& value) {
    json changed = base;
    changed[name] = value;
    const auto parsed = ParseConfig(changed.dump(), "config.json");
    return parsed.ok() ? "" : MessageOf(parsed.status());
  };
  const auto check = [&](const char* family, const json& base, const char* name, const json& same,
                         const json& other, const std::string& computed) {
    EXPECT_EQ(with(base, name, same), "") << family;
    const std::string problem = with(base, name, other);
    EXPECT_THAT(problem, AllOf(HasSubstr(StrCat(name, " is ", other.dump(), ", but the code of ")),
                               HasSubstr(computed), Not(HasSubstr("ignored_fields"))))
        << family;
    json ignored = base;
    ignored[name] = other;
    ignored["ignored_fields"] = {name};
    EXPECT_THAT(RejectionOf(ignored), HasSubstr("it cannot be ignored"));
  };
  const auto of = [](const char* model_type, bool has_mlp_bias = false) {
    json config = Smol();
    config["model_type"] = model_type;
    config.erase("attention_bias");
    if (!has_mlp_bias) config.erase("mlp_bias");
    return config;
  };
  check("llama", Smol(), "partial_rotary_factor", 1.0, 0.5, "llama computes 1;");
  check("llama", Smol(), "parallel_residual", false, true, "llama computes false;");
  check("llama", Smol(), "rotary_pct", 1, 0.25, "llama computes 1;");
  check("llama", Smol(), "layer_norm_eps", 1e-5, 1e-6, "llama computes 1e-05;");
  check("llama", Smol(), "n_ctx", 8192, 4096, "llama computes 8192;");
  check("mistral", of("mistral"), "mlp_bias", false, true, "mistral computes false;");
  check("mistral", of("mistral"), "attention_bias", false, true, "mistral computes false;");
  check("qwen2", of("qwen2"), "attention_bias", true, false, "qwen2 computes true;");
  check("qwen2", of("qwen2"), "mlp_bias", false, true, "qwen2 computes false;");
  check("qwen3", of("qwen3"), "mlp_bias", false, true, "qwen3 computes false;");
  check("smollm3", of("smollm3"), "embedding_norm", false, true, "smollm3 computes false;");
  json neox = of("gpt_neox");
  for (const char* const of_llama : {"num_key_value_heads", "rms_norm_eps"}) neox.erase(of_llama);
  check("gpt_neox", neox, "num_key_value_heads", 9, 3, "gpt_neox computes 9;");
  check("gpt_neox", neox, "head_dim", 64, 32, "gpt_neox computes 64;");
  check("gpt_neox", neox, "mlp_bias", true, false, "gpt_neox computes true;");
  const json gpt2 = {{"model_type", "gpt2"}, {"n_embd", 64},        {"n_head", 4},
                     {"n_layer", 2},         {"n_positions", 1024}, {"vocab_size", 50257}};
  check("gpt2", gpt2, "embedding_norm", false, true, "gpt2 computes false;");
  check("gpt2", gpt2, "attention_bias", true, false, "gpt2 computes true;");
  check("gpt2", gpt2, "hidden_size", 64, 32, "gpt2 computes 64;");
  EXPECT_THAT(with(gpt2, "rope_theta", 10000),
              HasSubstr("gpt2 does not read it; it must be absent"));
  EXPECT_THAT(with(gpt2, "partial_rotary_factor", 1), HasSubstr("does not read it"));
  for (const json& base : {Smol(), gpt2}) EXPECT_EQ(with(base, "max_window_layers", 28), "");
}

json Of(const char* model_type, const json& more) {
  json config = Smol();
  config["model_type"] = model_type;
  for (const char* const of_llama : {"attention_bias", "mlp_bias"}) config.erase(of_llama);
  config.update(more);
  return config;
}

TEST(HfConfigTest, TwoNamesOfOneField) {
  json neox = Of("gpt_neox", {{"rotary_emb_base", 500}, {"layer_norm_eps", 1e-5}});
  for (const char* const of_llama : {"num_key_value_heads", "rms_norm_eps", "pretraining_tp"}) {
    neox.erase(of_llama);
  }
  EXPECT_THAT(RejectionOf(neox),
              HasSubstr("rope_theta is 100000, but rotary_emb_base is 500; they must be equal"));
  neox["rope_theta"] = 500;
  json partial = neox;
  partial.update({{"rotary_pct", 0.5}, {"rope_parameters", {{"partial_rotary_factor", 0.25}}}});
  EXPECT_THAT(RejectionOf(partial),
              HasSubstr("rotary_pct is 0.5, but partial_rotary_factor is 0.25 in rope_parameters"));
  EXPECT_TRUE(ParseConfig(neox.dump(), "config.json").ok());
}

std::vector<int> Windows(const json& config) {
  const auto parsed = ParseConfig(config.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  std::vector<int> windows;
  if (!parsed.ok()) return windows;
  for (const AttentionSpec& spec : parsed->attention) windows.push_back(spec.window);
  return windows;
}

TEST(HfConfigTest, WindowsByLayer) {
  const json four = {{"num_hidden_layers", 4}};
  const auto with = [&](const char* model_type, json more) {
    more.update(four);
    return Of(model_type, more);
  };
  const json used = {{"use_sliding_window", true}, {"sliding_window", 7}, {"max_window_layers", 3}};
  EXPECT_THAT(Windows(with("mistral", {{"sliding_window", 9}})), ElementsAre(9, 9, 9, 9));
  EXPECT_THAT(Windows(with("mistral", {{"sliding_window", nullptr}})), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Windows(with("mistral", json::object())), ElementsAre(4096, 4096, 4096, 4096));
  EXPECT_THAT(Windows(with("qwen2", {{"sliding_window", 7}})), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Windows(with("qwen2", used)), ElementsAre(0, 0, 0, 7));
  json typed = used;
  typed["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                          "full_attention"};
  EXPECT_THAT(Windows(with("qwen3", typed)), ElementsAre(7, 0, 7, 0));
  EXPECT_THAT(Windows(with("smollm3", used)), ElementsAre(0, 0, 0, 7));
  typed["use_sliding_window"] = false;
  EXPECT_THAT(RejectionOf(with("qwen3", typed)), HasSubstr("without a sliding window"));
  typed["use_sliding_window"] = true;
  typed["layer_types"] = {"full_attention"};
  EXPECT_THAT(RejectionOf(with("qwen2", typed)), HasSubstr("layer_types has 1 elements"));
  typed["layer_types"] = {"full_attention", "full_attention", "chunked_attention", "x"};
  EXPECT_THAT(RejectionOf(with("qwen2", typed)), HasSubstr("\"chunked_attention\" for layer 2"));
  EXPECT_THAT(RejectionOf(with("mistral", {{"sliding_window", 0}})),
              HasSubstr("sliding_window is 0"));
  EXPECT_THAT(RejectionOf(with("llama", {{"use_sliding_window", true}})),
              HasSubstr("use_sliding_window is true"));
}

TEST(HfConfigTest, OtherFamiliesAreRefusedByName) {
  EXPECT_THAT(RejectionOf(Of("gemma2", json::object())),
              AllOf(HasSubstr("model_type is \"gemma2\", which is not computed"),
                    HasSubstr("llama, mistral, qwen2, qwen3, smollm3, gpt2, bloom, gpt_neox")));
}

TEST(HfConfigTest, LayersWithoutPositions) {
  json config = Of("smollm3", {{"num_hidden_layers", 6}});
  const auto nope = [&] {
    const auto parsed = ParseConfig(config.dump(), "config.json");
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? parsed->is_nope_layer : std::vector<bool>();
  };
  EXPECT_THAT(nope(), ElementsAre(false, false, false, true, false, false));
  config["no_rope_layer_interval"] = 3;
  EXPECT_THAT(nope(), ElementsAre(false, false, true, false, false, true));
  config["no_rope_layers"] = {0, 1, 1, 1, 1, 1};
  EXPECT_THAT(nope(), ElementsAre(true, false, false, false, false, false));
  config["no_rope_layers"] = {0, 1};
  EXPECT_THAT(RejectionOf(config), HasSubstr("must have 0 or 1 for each of 6 layers"));
  EXPECT_THAT(RejectionOf(Of("llama", {{"no_rope_layers", {1, 0}}})), HasSubstr("no_rope_layers"));
}

TEST(HfConfigTest, Gpt2AndBloomByTheirNames) {
  // gpt2's and bloom-560m's fields.
  const json gpt2 = {{"model_type", "gpt2"},
                     {"activation_function", "gelu_new"},
                     {"attn_pdrop", 0.1},
                     {"bos_token_id", 50256},
                     {"eos_token_id", 50256},
                     {"layer_norm_epsilon", 1e-5},
                     {"n_ctx", 1024},
                     {"n_embd", 768},
                     {"n_head", 12},
                     {"n_layer", 12},
                     {"n_positions", 1024},
                     {"summary_use_proj", true},
                     {"task_specific_params", {}},
                     {"vocab_size", 50257}};
  const auto parsed = ParseConfig(gpt2.dump(), "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->MaxLength(), 1024);
  EXPECT_TRUE(parsed->conv1d_layout && parsed->tie_word_embeddings && parsed->norm_bias);
  EXPECT_TRUE(CheckMaxLength(*parsed, 1024).ok());
  EXPECT_THAT(MessageOf(CheckMaxLength(*parsed, 1025)), HasSubstr("n_positions = 1024"));
  json scaled = gpt2;
  scaled["scale_attn_by_inverse_layer_idx"] = true;
  EXPECT_THAT(RejectionOf(scaled), HasSubstr("scale_attn_by_inverse_layer_idx is true"));

  const json bloom = {{"model_type", "bloom"},
                      {"apply_residual_connection_post_layernorm", false},
                      {"attention_softmax_in_fp32", true},
                      {"bias_dropout_fusion", true},
                      {"hidden_dropout", 0.0},
                      {"layer_norm_epsilon", 1e-5},
                      {"masked_softmax_fusion", true},
                      {"n_embed", 1024},
                      {"n_inner", nullptr},
                      {"n_layer", 24},
                      {"num_attention_heads", 16},
                      {"offset_alibi", 100},
                      {"pretraining_tp", 1},
                      {"seq_length", 2048},
                      {"skip_bias_add", true},
                      {"skip_bias_add_qkv", false},
                      {"unk_token_id", 0},
                      {"vocab_size", 250880}};
  const auto alibi = ParseConfig(bloom.dump(), "config.json");
  ASSERT_TRUE(alibi.ok()) << alibi.status();
  EXPECT_TRUE(alibi->attention[0].has_alibi && alibi->embedding_norm);
  EXPECT_EQ(alibi->max_position_embeddings, 2048);
  EXPECT_EQ(alibi->MaxLength(), std::nullopt);
  for (const char* const name : {"apply_residual_connection_post_layernorm", "slow_but_exact"}) {
    json changed = bloom;
    changed[name] = true;
    EXPECT_THAT(RejectionOf(changed), HasSubstr(StrCat(name, " is true")));
  }
}

// Directories as transformers writes them, with its own logits (make_hf_golden.py).
TEST(HfDirectoryTest, LogitsEqualThoseOfTransformers) {
  int num_directories = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/models/hf")) {
    if (!entry.is_directory()) continue;
    const std::string path = entry.path();
    for (const char* const device : {"reference", "cpu"}) {
      const auto backend = testing::NewBackend(device);
      const auto loaded = LoadCheckpoint(path, backend.get(), {.max_num_batched_tokens = 40});
      ASSERT_TRUE(loaded.ok()) << path << ": " << loaded.status();
      EXPECT_EQ(loaded->config.AttentionNames(), "softmax");
      const auto report = SelfCheck(path, *loaded, backend.get(), DType::kF32, /*page_size=*/16);
      ASSERT_TRUE(report.ok()) << path << " on " << device << ": " << report.status();
      EXPECT_EQ(report->num_rows, 6) << path;
      EXPECT_LE(report->worst_error, 5e-5) << path << " on " << device;
      if (std::string_view(device) == "cpu") ++num_directories;
    }
  }
  EXPECT_EQ(num_directories, 20);
}

// The reference's error of a directory whose tensors `change` has changed. Empty: it loads.
std::string ErrorAfter(const std::string& name,
                       const std::function<void(std::vector<testing::RawTensor>*)>& change) {
  const ScratchDirectory directory;
  directory.CopyFrom("tests/models/hf/" + name);
  std::vector<testing::RawTensor> tensors =
      testing::ReadTensors(directory.Path("model.safetensors"));
  change(&tensors);
  directory.Write("model.safetensors", testing::MakeSafetensors(tensors));
  const auto backend = testing::NewBackend("reference");
  const auto loaded =
      LoadCheckpoint(directory.Path(), backend.get(), {.max_num_batched_tokens = 8});
  if (!loaded.ok()) return MessageOf(loaded.status());
  const auto report = SelfCheck(directory.Path(), *loaded, backend.get(), DType::kF32, 16);
  return report.ok() ? "" : MessageOf(report.status());
}

// Masks and frequencies that older versions of transformers wrote.
TEST(HfDirectoryTest, BuffersOfAnyTypeAreIgnored) {
  const std::vector<std::pair<std::string, size_t>> types{{"F64", 8}, {"U64", 8}, {"U32", 4},
                                                          {"I16", 2}, {"U16", 2}, {"BOOL", 1}};
  for (const auto& [type, num_bytes] : types) {
    const auto add = [&](const std::string& name, int64_t count) {
      return [&, name, count](std::vector<testing::RawTensor>* tensors) {
        tensors->insert(tensors->begin(),
                        {name, type, {count, 8}, std::string(size_t(count) * 8 * num_bytes, '\1')});
      };
    };
    EXPECT_EQ(ErrorAfter("gpt2", add("transformer.h.0.attn.bias", 4)), "") << type;
    EXPECT_EQ(ErrorAfter("gpt_neox", add("gpt_neox.layers.1.attention.bias", 4)), "") << type;
    EXPECT_EQ(ErrorAfter("llama", add("model.layers.0.self_attn.rotary_emb.inv_freq", 4)), "");
    EXPECT_THAT(ErrorAfter("llama", add("model.layers.0.self_attn.rotary_emb.scale", 4)),
                HasSubstr(StrCat("is unexpected: ", type, " [4, 8]")));
  }
}

TEST(HfDirectoryTest, WeightsMustBeFloats) {
  for (const std::string type : {"F64", "BOOL", "I16"}) {
    const auto change = [&](std::vector<testing::RawTensor>* tensors) {
      auto& norm = *std::ranges::find_if(
          *tensors, [](const auto& each) { return each.name == "model.norm.weight"; });
      const size_t num_bytes = type == "F64" ? 8 : type == "I16" ? 2 : 1;
      norm = {norm.name, type, norm.shape, std::string(size_t(norm.shape[0]) * num_bytes, '\1')};
      std::ranges::rotate(*tensors, tensors->begin() + (&norm - tensors->data()));
    };
    EXPECT_THAT(ErrorAfter("llama", change),
                HasSubstr(StrCat("model.norm.weight\" has dtype ", type, ", must be F32")));
  }
}

// As `lssar import`, which takes the wider type.
TEST(TensorSourceTest, PartsOfTwoTypesAreJoined) {
  const ScratchDirectory directory;
  ModelConfig config;
  config.tensor_names = ModelConfig::TensorNames::kLlama;
  const auto bits = [](uint16_t first, uint16_t second) {
    const uint16_t both[] = {first, second};
    return std::string(reinterpret_cast<const char*>(both), sizeof(both));
  };
  const std::string prefix = "model.layers.0.self_attn.";
  const auto open = [&](const testing::RawTensor& v) {
    const std::string path = directory.Write(
        "m.safetensors",
        testing::MakeSafetensors(
            {v,
             {prefix + "q_proj.weight", "F16", {1, 2}, bits(F16FromFloat(0.1f), F16FromFloat(2))},
             {prefix + "k_proj.weight", "BF16", {1, 2}, bits(Bf16FromFloat(3), Bf16FromFloat(4))},
             {"model.embed_tokens.weight", "F16", {1, 1}, std::string(2, '\0')}}));
    return TensorFile::Open(path);
  };
  const auto file =
      open({prefix + "v_proj.weight", "F32", {2, 2}, testing::FloatBytes({5, 6, 7, 8})});
  ASSERT_TRUE(file.ok()) << file.status();
  TensorSource source(*file, config);
  const TensorView* const joined = source.Find("h.0.attn.c_attn.weight");
  ASSERT_NE(joined, nullptr) << source.status();
  EXPECT_EQ(joined->type, TensorType::kF32);
  EXPECT_THAT(joined->shape, ElementsAre(4, 2));
  EXPECT_THAT(joined->ToFloats(),
              ElementsAre(FloatFromF16(F16FromFloat(0.1f)), 2, 3, 4, 5, 6, 7, 8));

  const auto wrong = open({prefix + "v_proj.weight", "I32", {1, 2}, testing::FloatBytes({5, 6})});
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  TensorSource refused(*wrong, config);
  EXPECT_EQ(refused.Find("h.0.attn.c_attn.weight"), nullptr);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("v_proj.weight\" has another type or row"));
}

}  // namespace
}  // namespace lssar
