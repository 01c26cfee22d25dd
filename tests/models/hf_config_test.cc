#include "models/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "models/checkpoint.h"
#include "models/config.h"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MessageOf;

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

std::string Refusal(const json& config) {
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

TEST(HfConfigTest, Refusals) {
  json config = Smol();
  config["zeta"] = 1;
  config["alpha"] = {1, 2};
  EXPECT_THAT(Refusal(config),
              AllOf(HasSubstr("\"alpha\", \"zeta\""), HasSubstr("\"ignored_fields\": [\"alpha\"")));
  config["ignored_fields"] = {"zeta", "alpha"};
  EXPECT_TRUE(ParseConfig(config.dump(), "config.json").ok());
  const auto with = [](const char* name, const json& value) {
    json changed = Smol();
    changed[name] = value;
    return Refusal(changed);
  };
  EXPECT_THAT(with("rope_interleaved", true), HasSubstr("rope_interleaved is true"));
  EXPECT_THAT(with("sliding_window", 4096), HasSubstr("sliding_window is 4096"));
  EXPECT_THAT(with("layer_types", {"full_attention", "sliding_attention"}),
              HasSubstr("layer_types"));
  EXPECT_THAT(with("quantization_config", json::object()), HasSubstr("quantization_config"));
  EXPECT_THAT(with("rope_scaling", {{"rope_type", "mrope"}}), HasSubstr("rope_type is \"mrope\""));
  EXPECT_THAT(with("rope_scaling", {{"type", "yarn"}, {"factor", 0.5}}), HasSubstr("factor"));
  EXPECT_THAT(with("rope_scaling", {{"type", "longrope"}, {"short_factor", {1}}}),
              HasSubstr("short_factor must have 32 numbers"));
  json wide = Smol();
  wide["sliding_window"] = 8192;
  EXPECT_TRUE(ParseConfig(wide.dump(), "config.json").ok());
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
  EXPECT_EQ(num_directories, 12);
}

}  // namespace
}  // namespace lssar
