#include "models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/str_cat.h"
#include "models/rope.h"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MessageOf;

constexpr std::string_view kGood = R"({
  "architectures": ["LssarGPT"], "model_type": "lssar_gpt", "resid_pdrop": 0.1,
  "vocab_size": 257, "n_layer": 3, "n_head": 3, "n_embd": 96, "n_positions": 64,
  "attention": {"kind": "lssar", "p": 15}
})";

// kGood with `from` replaced by `to`.
std::string Edited(std::string_view from, std::string_view to) {
  std::string text(kGood);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string With(std::string_view fields) { return Edited("{", StrCat("{", fields, ", ")); }

std::string Refusal(std::string_view text) {
  const absl::StatusOr<ModelConfig> config = ParseConfig(text, "dir/config.json");
  EXPECT_FALSE(config.ok()) << text;
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(config.status()), ::testing::StartsWith("dir/config.json: "));
  return MessageOf(config.status());
}

ModelConfig Parsed(std::string_view text) {
  const absl::StatusOr<ModelConfig> config = ParseConfig(text, "config.json");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.value_or(ModelConfig{});
}

TEST(ConfigTest, DefaultsAndFields) {
  const ModelConfig config = Parsed(kGood);
  EXPECT_EQ(config.vocab_size, 257);
  EXPECT_EQ(config.num_hidden_layers, 3);
  EXPECT_EQ(config.num_attention_heads, 3);
  EXPECT_EQ(config.HeadDim(), 32);
  EXPECT_EQ(config.NumKvHeads(), 3);
  EXPECT_EQ(config.QkvSize(), 3 * 96);
  EXPECT_EQ(config.norm_kind, ModelConfig::NormKind::kLayerNorm);
  EXPECT_EQ(config.mlp_kind, ModelConfig::MlpKind::kPlain);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_TRUE(config.norm_bias && config.attention_bias && config.mlp_bias);
  EXPECT_EQ(config.intermediate_size, 4 * 96);
  EXPECT_EQ(config.max_position_embeddings, 64);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-5f);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.rope_layout, RopeLayout::kHalfSplit);
  EXPECT_FALSE(config.dynamic_ntk_factor);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.conv1d_layout);
  EXPECT_FALSE(config.bos_id);
  EXPECT_EQ(config.attention.kind, AttentionKind::kLssar);
  EXPECT_EQ(config.attention.p, 15.0);
  EXPECT_EQ(config.attention.max_position_embeddings, 64);
}

TEST(ConfigTest, EveryFieldCanBeSet) {
  const ModelConfig config = Parsed(With(
      R"("n_inner": 200, "layer_norm_epsilon": 1e-6, "rope_theta": 5e5,
         "rope_layout": "interleaved",
         "rope_scaling": {"rope_type": "dynamic", "factor": 2}, "tie_word_embeddings": false,
         "linear_layout": "conv1d", "bos_token_id": 0, "eos_token_id": 256,
         "num_key_value_heads": 3, "normalization": "layer_norm", "mlp_kind": "plain",
         "activation_function": "gelu_new", "norm_bias": false, "attention_bias": false,
         "mlp_bias": false)"));
  EXPECT_FALSE(config.norm_bias || config.attention_bias || config.mlp_bias);
  EXPECT_EQ(config.intermediate_size, 200);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-6f);
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.rope_layout, RopeLayout::kInterleaved);
  EXPECT_EQ(config.dynamic_ntk_factor, 2.0);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.conv1d_layout);
  EXPECT_EQ(config.bos_id, 0);
  EXPECT_EQ(config.eos_id, 256);
}

TEST(ConfigTest, NamesOfAttentionKinds) {
  for (const char* kind : {"softmax", "lssa", "lssar", "softmax_r", "sigmoid", "sigmoid_n",
                           "sigmoid_n_l1", "sigmoid_r", "relu_wortsman"}) {
    const ModelConfig config = Parsed(Edited("\"lssar\"", StrCat("\"", kind, "\"")));
    EXPECT_EQ(NameOf(config.attention.kind), kind);
  }
  const ModelConfig config = Parsed(Edited("\"lssar\"", R"("phi", "phi": "mish")"));
  EXPECT_EQ(config.attention.kind, AttentionKind::kPhi);
  EXPECT_EQ(config.attention.phi, Phi::kMish);
}

TEST(ConfigTest, MissingAttentionSaysWhatToAdd) {
  EXPECT_THAT(Refusal(Edited(R"(,
  "attention": {"kind": "lssar", "p": 15})",
                             "")),
              AllOf(HasSubstr("attention is missing"),
                    HasSubstr(R"(add "attention": {"kind": "lssar", "p": 15})")));
  EXPECT_THAT(Refusal(Edited(", \"p\": 15", "")),
              AllOf(HasSubstr("p is missing"), HasSubstr("add \"p\": 15")));
}

TEST(ConfigTest, RefusalsNameFieldValueAndLimit) {
  const struct {
    std::string text;
    std::vector<std::string> parts;
  } cases[] = {
      {"{", {"not JSON", "byte"}},
      {"[1]", {"[1]", "must be a JSON object"}},
      {With(R"("n_layer": 4)"), {"\"n_layer\"", "twice"}},
      {Edited("\"n_layer\": 3", "\"n_layer\": 0"), {"n_layer", "0", "[1, 1024]"}},
      {Edited("\"n_layer\": 3", "\"n_layer\": 3.5"), {"n_layer", "3.5", "integer"}},
      {Edited("\"n_layer\": 3", "\"n_layer\": \"3\""), {"n_layer", "\"3\"", "integer"}},
      {Edited("\"n_layer\": 3, ", ""), {"n_layer is missing"}},
      {Edited("\"vocab_size\": 257", "\"vocab_size\": 18446744073709551615"),
       {"vocab_size", "18446744073709551615", "[1, 1048576]"}},
      {Edited("\"n_head\": 3", "\"n_head\": 5"), {"n_embd", "96", "multiple of n_head", "5"}},
      {Edited("\"n_head\": 3", "\"n_head\": 32"), {"n_embd / n_head", "3", "even"}},
      {With(R"("layer_norm_epsilon": 0)"), {"layer_norm_epsilon", "0", "(0, 1]"}},
      {With(R"("rope_theta": 0.5)"), {"rope_theta", "0.5", "[1, "}},
      {With(R"("rope_layout": "zigzag")"), {"rope_layout", "zigzag", "half, interleaved"}},
      {With(R"("linear_layout": 1)"), {"linear_layout", "1", "linear, conv1d"}},
      {With(R"("tie_word_embeddings": 1)"), {"tie_word_embeddings", "1", "true or false"}},
      {With(R"("eos_token_id": 257)"), {"eos_token_id", "257", "[0, 256]"}},
      {With(R"("bos_token_id": [1])"), {"bos_token_id", "[1]", "integer"}},
      {With(R"("activation_function": "relu")"),
       {"activation_function", "relu", "no backend computes yet", "must be one of gelu_new"}},
      {With(R"("activation_function": "tanh")"),
       {"activation_function", "tanh", "must be one of gelu_new"}},
      {With(R"("normalization": "rms_norm")"),
       {"normalization", "rms_norm", "no backend computes yet", "must be one of layer_norm"}},
      {With(R"("mlp_kind": "gated")"),
       {"mlp_kind", "gated", "no backend computes yet", "must be one of plain"}},
      {With(R"("num_key_value_heads": 1)"),
       {"num_key_value_heads", "1", "no backend computes yet", "n_head, 3"}},
      {With(R"("attention_bias": 0)"), {"attention_bias", "0", "true or false"}},
      {With(R"("scale_attn_weights": false)"), {"scale_attn_weights", "false", "must be true"}},
      {With(R"("rope_scaling": {"type": "yarn", "factor": 2})"),
       {"rope_scaling", "yarn", "dynamic"}},
      {With(R"("rope_scaling": {"type": "dynamic", "factor": 0.5})"), {"factor", "0.5", "[1, "}},
      {With(R"("rope_scaling": {"type": "dynamic"})"), {"rope_scaling", "factor is missing"}},
      {Edited("\"lssar\"", "\"flash\""),
       {"kind", "flash", "softmax, lssa, lssar", "relu_wortsman"}},
      {Edited("\"kind\": \"lssar\", ", ""), {"attention: kind is missing"}},
      {Edited("\"p\": 15", "\"p\": 0"), {"attention: p", "0", "(0, 1000]"}},
      {Edited("\"p\": 15", "\"p\": -3"), {"attention: p", "-3"}},
      {Edited("\"p\": 15", "\"p\": 1e999"), {"number overflow", "1e999"}},
      {Edited("\"p\": 15", "\"p\": 15, \"window\": 128"),
       {"unknown field \"window\"", "kind, p, phi"}},
      {Edited("\"lssar\"", R"("phi", "phi": "tanh")"), {"phi", "tanh", "relu, relu2"}},
      {Edited(R"({"kind": "lssar", "p": 15})", "\"lssar\""), {"attention", "must be an object"}},
  };
  for (const auto& c : cases) {
    const std::string message = Refusal(c.text);
    for (const std::string& part : c.parts) EXPECT_THAT(message, HasSubstr(part)) << c.text;
  }
}

TEST(RopeTest, BaseFollowsTheLengthBudgetRoundedUp) {
  ModelConfig config = Parsed(kGood);
  EXPECT_EQ(RopeBase(config, 100000), 10000.0);
  config.dynamic_ntk_factor = 1.0;
  EXPECT_EQ(RopeBase(config, 64), 10000.0);
  EXPECT_DOUBLE_EQ(RopeBase(config, 128), 10000.0 * std::pow(2.0, 32.0 / 30.0));
  EXPECT_EQ(RopeBase(config, 65), RopeBase(config, 128));
  EXPECT_EQ(RopeBase(config, 129), RopeBase(config, 256));
  config.dynamic_ntk_factor = 3.0;
  EXPECT_DOUBLE_EQ(RopeBase(config, 128), 10000.0 * std::pow(3.0 * 2 - 2, 32.0 / 30.0));
  EXPECT_DOUBLE_EQ(RopeBaseAtLength(config, 80), 10000.0 * std::pow(3.0 * 1.25 - 2, 32.0 / 30.0));
}

TEST(RopeTest, AnglesFollowEachTokensPosition) {
  const std::vector<SequenceSlice> sequences{
      {.first_row = 0, .num_rows = 1, .first_position = 16383, .pages = {}},
      {.first_row = 1, .num_rows = 2, .first_position = 0, .pages = {}}};
  std::vector<double> frequencies(2);
  std::vector<float> angles(3 * 4);
  FillRopeAngles({.num_rows = 3, .sequences = sequences}, std::vector<double>{1e4, 100.0},
                 frequencies, angles);
  EXPECT_FLOAT_EQ(angles[0], float(std::cos(16383.0)));
  EXPECT_FLOAT_EQ(angles[1], float(std::cos(163.83)));
  EXPECT_FLOAT_EQ(angles[2], float(std::sin(16383.0)));
  EXPECT_FLOAT_EQ(angles[3], float(std::sin(163.83)));
  EXPECT_THAT(std::vector<float>(angles.begin() + 4, angles.begin() + 8),
              ::testing::ElementsAre(1, 1, 0, 0));
  EXPECT_FLOAT_EQ(angles[9], float(std::cos(0.1)));
}

}  // namespace
}  // namespace lssar
