#include "models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "base/str_cat.h"
#include "models/rope.h"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MessageOf;

constexpr std::string_view kGood = R"({
  "architectures": ["LssarGPT"], "model_type": "lssar_gpt", "resid_pdrop": 0.1,
  "vocab_size": 257, "n_layer": 3, "n_head": 3, "n_embd": 96, "n_positions": 64,
  "activation_function": "gelu_new", "rope_theta": 1e4,
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

std::string Rejection(std::string_view text) {
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
  EXPECT_EQ(config.norm_kind, NormKind::kLayerNorm);
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
  ASSERT_EQ(config.attention.size(), 3u);
  for (const AttentionSpec& spec : config.attention) {
    EXPECT_EQ(spec.kind, AttentionKind::kLssar);
    EXPECT_EQ(spec.p, 15.0);
    EXPECT_EQ(spec.max_position_embeddings, 64);
  }
  EXPECT_EQ(config.AttentionNames(), "lssar");
  EXPECT_EQ(config.AttentionP(), 15.0);
  EXPECT_TRUE(config.norm_weight && config.attention_out_bias && config.mlp_out_bias);
  EXPECT_EQ(config.norm_position, ModelConfig::NormPosition::kPre);
  EXPECT_FALSE(config.embedding_norm || config.parallel_residual);
  EXPECT_EQ(config.attention_residual_scale, 1.0f);
  EXPECT_EQ(config.mlp_residual_scale, 1.0f);
  EXPECT_EQ(config.qk_norm.kind, NormKind::kNone);
  EXPECT_EQ(config.RotaryDims(), 32);
  EXPECT_EQ(config.final_logit_softcapping, 0.0f);
  EXPECT_EQ(config.NumTokenIds(), 257);
  EXPECT_THAT(config.Features(), ::testing::UnorderedElementsAre(
                                     Feature::kLayerNorm, Feature::kGeluTanh, Feature::kPlainMlp,
                                     Feature::kPreNorm, Feature::kRotaryPositions));
}

TEST(ConfigTest, EveryFieldCanBeSet) {
  const std::string own =
      Edited(R"("activation_function": "gelu_new", "rope_theta": 1e4,)",
             R"("activation_function": "silu", "rope_theta": 5e5, "n_inner": 200,
         "layer_norm_epsilon": 1e-6, "rope_layout": "interleaved",
         "rope_scaling": {"rope_type": "dynamic", "factor": 2}, "tie_word_embeddings": false,
         "linear_layout": "conv1d", "bos_token_id": 0, "eos_token_id": 249,
         "num_key_value_heads": 1, "head_dim": 40, "partial_rotary_factor": 0.25,
         "normalization": "rms_norm", "norm_weight": false, "norm_bias": true,
         "norm_position": "sandwich", "embedding_norm": true, "mlp_kind": "gated",
         "attention_bias": false, "attention_out_bias": true, "mlp_bias": false,
         "mlp_out_bias": true, "parallel_residual": true, "attention_residual_scale": 0.5,
         "mlp_residual_scale": 2, "unpadded_vocab_size": 250, "final_logit_softcapping": 30,
         "qk_norm": {"kind": "layer_norm", "position": "after_rotary", "weight": true,
                     "bias": true, "epsilon": 1e-3}, "tool_version": 3,
         "ignored_fields": ["tool_version"],)");
  const ModelConfig config = Parsed(own);
  EXPECT_EQ(config.activation, Activation::kSilu);
  EXPECT_EQ(config.intermediate_size, 200);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-6f);
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.rope_layout, RopeLayout::kInterleaved);
  EXPECT_EQ(config.dynamic_ntk_factor, 2.0);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.conv1d_layout);
  EXPECT_EQ(config.bos_id, 0);
  EXPECT_EQ(config.eos_id, 249);
  EXPECT_EQ(config.NumKvHeads(), 1);
  EXPECT_EQ(config.HeadDim(), 40);
  EXPECT_EQ(config.RotaryDims(), 10);
  EXPECT_EQ(config.AttentionSize(), 120);
  EXPECT_EQ(config.QkvSize(), 5 * 40);
  EXPECT_EQ(config.norm_kind, NormKind::kRmsNorm);
  EXPECT_FALSE(config.norm_weight || config.attention_bias || config.mlp_bias);
  EXPECT_TRUE(config.norm_bias && config.attention_out_bias && config.mlp_out_bias);
  EXPECT_EQ(config.norm_position, ModelConfig::NormPosition::kSandwich);
  EXPECT_TRUE(config.embedding_norm && config.parallel_residual);
  EXPECT_EQ(config.mlp_kind, ModelConfig::MlpKind::kGated);
  EXPECT_EQ(config.attention_residual_scale, 0.5f);
  EXPECT_EQ(config.mlp_residual_scale, 2.0f);
  EXPECT_EQ(config.NumTokenIds(), 250);
  EXPECT_EQ(config.final_logit_softcapping, 30.0f);
  EXPECT_EQ(config.qk_norm.kind, NormKind::kLayerNorm);
  EXPECT_TRUE(config.qk_norm.after_rotary && config.qk_norm.has_weight && config.qk_norm.has_bias);
  EXPECT_EQ(config.qk_norm.epsilon, 1e-3f);
  EXPECT_EQ(config.Features().size(), 12u) << "everything that is not the GPT-2 block";
}

TEST(ConfigTest, AttentionMayBeAListWithOneObjectALayer) {
  const ModelConfig config = Parsed(
      Edited(R"({"kind": "lssar", "p": 15})",
             R"([{"kind": "lssar", "p": 15}, {"kind": "softmax"}, {"kind": "lssar", "p": 3}])"));
  EXPECT_EQ(config.attention[0].p, 15.0);
  EXPECT_EQ(config.attention[1].kind, AttentionKind::kSoftmax);
  EXPECT_EQ(config.attention[2].p, 3.0);
  EXPECT_EQ(config.AttentionNames(), "lssar, softmax");
  EXPECT_EQ(config.AttentionP(), std::nullopt);
}

// A field under another program's name is accepted beside ours, with the same value.
TEST(ConfigTest, OtherNamesMustAgree) {
  EXPECT_EQ(Parsed(With(R"("hidden_size": 96, "rms_norm_eps": null, "n_ctx": 64.0)")).hidden_size,
            96);
  EXPECT_THAT(Rejection(With(R"("hidden_size": 90)")),
              AllOf(HasSubstr("hidden_size is 90"), HasSubstr("n_embd is 96")));
  EXPECT_THAT(Rejection(With(R"("rotary_pct": 0.25)")),
              AllOf(HasSubstr("rotary_pct is 0.25"), HasSubstr("partial_rotary_factor")));
}

std::string WithPositions(std::string_view more, std::string_view attention) {
  return StrCat(R"({"vocab_size": 257, "n_layer": 2, "n_head": 3, "n_embd": 96, "n_positions": 64,
                    "activation_function": "gelu", )",
                more, R"(, "attention": )", attention, "}");
}

TEST(ConfigTest, Positions) {
  const std::string softmax = R"({"kind": "softmax"})";
  const ModelConfig learned = Parsed(WithPositions(R"("positions": "learned")", softmax));
  EXPECT_EQ(learned.MaxLength(), 64);
  const ModelConfig alibi = Parsed(WithPositions(R"("positions": "alibi")", softmax));
  EXPECT_TRUE(alibi.attention[1].has_alibi);
  EXPECT_EQ(alibi.MaxLength(), std::nullopt);
  const ModelConfig none = Parsed(WithPositions(R"("positions": "none")", softmax));
  EXPECT_THAT(none.is_nope_layer, ElementsAre(true, true));
  const ModelConfig mixed = Parsed(WithPositions(R"("rope_theta": 10000, "nope_layers": [1])",
                                                 R"([{"kind": "softmax", "window": 9},
          {"kind": "softmax"}])"));
  EXPECT_THAT(mixed.is_nope_layer, ElementsAre(false, true));
  EXPECT_EQ(mixed.attention[0].window, 9);
  EXPECT_EQ(mixed.attention[1].window, 0);

  const auto refusal = [](std::string_view more, std::string_view attention) {
    return Rejection(WithPositions(more, attention));
  };
  EXPECT_THAT(
      refusal(R"("positions": "sinusoidal")", softmax),
      HasSubstr("positions is \"sinusoidal\", must be one of rotary, none, learned, alibi"));
  EXPECT_THAT(refusal(R"("positions": "learned", "rope_theta": 10000)", softmax),
              HasSubstr("rope_theta is given, but positions is not \"rotary\""));
  EXPECT_THAT(refusal(R"("positions": "alibi")", R"({"kind": "lssar", "p": 15})"),
              HasSubstr("only softmax is computed with ALiBi"));
  EXPECT_THAT(refusal(R"("positions": "none")", R"({"kind": "lssa", "window": 9})"),
              HasSubstr("only softmax has a window"));
  EXPECT_THAT(refusal(R"("positions": "none")", R"({"kind": "softmax", "window": 0})"),
              HasSubstr("window is 0"));
  EXPECT_THAT(refusal(R"("rope_theta": 10000, "nope_layers": [2])", softmax),
              HasSubstr("nope_layers holds 2, must hold layers in [0, 1]"));
}

// Values that make another function are refused by name; the one that does not is accepted.
TEST(ConfigTest, FieldsOfOtherProgramsAreNotIgnored) {
  EXPECT_EQ(Parsed(With(R"("scale_attn_weights": true, "sliding_window": null, "alibi": false,
                           "logit_scale": 1.0, "pad_token_id": 0, "use_cache": true)"))
                .vocab_size,
            257);
  for (const char* field :
       {R"("scale_attn_weights": false)", R"("scale_attn_by_inverse_layer_idx": true)",
        R"("sliding_window": 4096)", R"("attn_logit_softcapping": 50.0)", R"("alibi": true)",
        R"("num_local_experts": 8)", R"("logit_scale": 0.25)", R"("rotary_dim": 16)",
        R"("query_pre_attn_scalar": 256)", R"("bias": false)", R"("attn_scale": 0.12)",
        R"("layer_types": ["full_attention"])", R"("qk_layernorm": true)"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_THAT(Rejection(With(field)),
                AllOf(HasSubstr(name), HasSubstr("which no backend computes")))
        << field;
  }
}

TEST(ConfigTest, UnknownFieldsAreRefusedUnlessIgnored) {
  EXPECT_THAT(Rejection(With(R"("mixture_depth": 2)")),
              AllOf(HasSubstr("unknown field \"mixture_depth\" (2)"),
                    HasSubstr(R"("ignored_fields": ["mixture_depth"])")));
  EXPECT_EQ(Parsed(With(R"("mixture_depth": 2, "ignored_fields": ["mixture_depth"])")).vocab_size,
            257);
  EXPECT_THAT(Rejection(With(R"("ignored_fields": ["n_layer"])")),
              AllOf(HasSubstr("n_layer"), HasSubstr("cannot be ignored")));
  EXPECT_THAT(Rejection(With(R"("sliding_window": 64, "ignored_fields": ["sliding_window"])")),
              HasSubstr("cannot be ignored"));
  EXPECT_THAT(Rejection(With(R"("ignored_fields": ["typo"])")), HasSubstr("does not have"));
  EXPECT_THAT(Rejection(With(R"("ignored_fields": [3])")), HasSubstr("names of fields"));
}

// What models differ in has no default.
TEST(ConfigTest, ChoicesWithoutADefault) {
  EXPECT_THAT(Rejection(Edited(R"("activation_function": "gelu_new", )", "")),
              AllOf(HasSubstr("activation_function is missing"), HasSubstr("gelu_new, ")));
  EXPECT_THAT(Rejection(Edited(R"("rope_theta": 1e4,)", "")), HasSubstr("rope_theta is missing"));
  EXPECT_THAT(Rejection(With(R"("norm_bias": false)")), HasSubstr("normalization is missing"));
  EXPECT_THAT(Rejection(With(R"("normalization": "rms_norm")")),
              HasSubstr("layer_norm_epsilon is missing"));
  const ModelConfig rms =
      Parsed(With(R"("normalization": "rms_norm", "layer_norm_epsilon": 1e-6)"));
  EXPECT_TRUE(rms.norm_weight);
  EXPECT_FALSE(rms.norm_bias);
}

TEST(ConfigTest, NamesOfAttentionKinds) {
  for (const char* kind : {"softmax", "lssa", "lssar", "softmax_r", "sigmoid", "sigmoid_n",
                           "sigmoid_n_l1", "sigmoid_r", "relu_wortsman"}) {
    const ModelConfig config = Parsed(Edited("\"lssar\"", StrCat("\"", kind, "\"")));
    EXPECT_EQ(config.AttentionNames(), kind);
  }
  const ModelConfig config = Parsed(Edited("\"lssar\"", R"("phi", "phi": "mish")"));
  EXPECT_EQ(config.attention[0].kind, AttentionKind::kPhi);
  EXPECT_EQ(config.attention[0].phi, Phi::kMish);
}

TEST(ConfigTest, MissingAttentionSaysWhatToAdd) {
  EXPECT_THAT(Rejection(Edited(R"(,
  "attention": {"kind": "lssar", "p": 15})",
                               "")),
              AllOf(HasSubstr("attention is missing"),
                    HasSubstr(R"(add "attention": {"kind": "lssar", "p": 15})")));
  EXPECT_THAT(Rejection(Edited(", \"p\": 15", "")),
              AllOf(HasSubstr("p is missing"), HasSubstr("add \"p\": 15")));
}

TEST(ConfigTest, APowerThatFp32RoundsToZeroIsRefused) {
  EXPECT_EQ(Parsed(Edited("\"p\": 15", "\"p\": 1.2e-38")).AttentionP(), 1.2e-38);
  EXPECT_THAT(Rejection(Edited("\"p\": 15", "\"p\": 5e-324")),
              AllOf(HasSubstr("p is "), HasSubstr("the smallest normal number in fp32")));
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
      {With(R"("layer_norm_epsilon": 1e-50)"),
       {"layer_norm_epsilon", "1e-50", "at least 1.1754943508222875e-38", "fp32"}},
      {With(R"("final_logit_softcapping": 1e-50)"), {"final_logit_softcapping", "1e-50", "fp32"}},
      {Edited("1e4", "0.5"), {"rope_theta", "0.5", "[1, "}},
      {With(R"("rope_layout": "zigzag")"), {"rope_layout", "zigzag", "half, interleaved"}},
      {With(R"("linear_layout": 1)"), {"linear_layout", "1", "linear, conv1d"}},
      {With(R"("tie_word_embeddings": 1)"), {"tie_word_embeddings", "1", "true or false"}},
      {With(R"("eos_token_id": 257)"), {"eos_token_id", "257", "[0, 256]"}},
      {With(StrCat(R"("eos_token_id": [0)", testing::Repeated(", 0", 256), "]")),
       {"eos_token_id has 257 ids", "at most 256"}},
      {With(R"("bos_token_id": [1])"), {"bos_token_id", "[1]", "integer"}},
      {Edited("gelu_new", "tanh"),
       {"activation_function", "tanh", "must be one of gelu_new, gelu_pytorch_tanh, gelu, relu"}},
      {With(R"("normalization": "group_norm")"),
       {"normalization", "group_norm", "must be one of layer_norm, rms_norm"}},
      {With(R"("norm_position": "post")"), {"norm_position", "post", "pre, sandwich"}},
      {With(R"("mlp_kind": "moe")"), {"mlp_kind", "moe", "must be one of plain, gated"}},
      {With(R"("num_key_value_heads": 2)"), {"num_key_value_heads", "2", "divide n_head, 3"}},
      {With(R"("head_dim": 33)"), {"head_dim", "33", "even"}},
      {With(R"("head_dim": 1024)"), {"head_dim", "1024", "[2, 512]"}},
      {With(R"("partial_rotary_factor": 0.1)"), {"partial_rotary_factor", "0.1", "3", "even"}},
      {With(R"("partial_rotary_factor": 1.5)"), {"partial_rotary_factor", "1.5", "(0, 1]"}},
      {With(R"("attention_residual_scale": 0)"), {"attention_residual_scale", "0", "(0, 1000]"}},
      {With(R"("final_logit_softcapping": 0)"), {"final_logit_softcapping", "0", "(0, "}},
      {With(R"("unpadded_vocab_size": 258)"), {"unpadded_vocab_size", "258", "[1, 257]"}},
      {With(R"("unpadded_vocab_size": 200, "eos_token_id": 200)"),
       {"eos_token_id", "200", "[0, 199]"}},
      {With(R"("qk_norm": true)"), {"qk_norm", "true", "an object"}},
      {With(R"("qk_norm": {"kind": "rms_norm", "weight": true})"),
       {"qk_norm: position is missing", "before_rotary, after_rotary"}},
      {With(R"("qk_norm": {"kind": "rms_norm", "position": "before_rotary"})"),
       {"qk_norm: weight is missing"}},
      {With(R"("qk_norm": {"kind": "l2"})"), {"qk_norm: kind", "l2", "layer_norm, rms_norm"}},
      {With(R"("attention_bias": 0)"), {"attention_bias", "0", "true or false"}},
      {With(R"("scale_attn_weights": false)"), {"scale_attn_weights", "false", "must be true"}},
      {With(R"("rope_scaling": {"type": "ntk", "factor": 2})"),
       {"rope_scaling", "ntk", "one of dynamic, linear, llama3, longrope, yarn"}},
      {With(R"("rope_scaling": {"type": "dynamic", "factor": 0.5})"), {"factor", "0.5", "[1, "}},
      {With(R"("rope_scaling": {"type": "dynamic"})"), {"rope_scaling", "factor is missing"}},
      {Edited("\"lssar\"", "\"flash\""),
       {"kind", "flash", "softmax, lssa, lssar", "relu_wortsman"}},
      {Edited("\"kind\": \"lssar\", ", ""), {"attention: kind is missing"}},
      {Edited("\"p\": 15", "\"p\": 0"), {"attention: p", "0", "(0, 1000]"}},
      {Edited("\"p\": 15", "\"p\": -3"), {"attention: p", "-3"}},
      {Edited("\"p\": 15", "\"p\": 1e999"), {"number at byte", "too large"}},
      {Edited("\"p\": 15", "\"p\": 15, \"sinks\": 128"),
       {"unknown field \"sinks\"", "kind, p, phi, window"}},
      {Edited("\"p\": 15", "\"p\": 15, \"window\": 128"),
       {"window is given", "only softmax has a window"}},
      {Edited("\"lssar\"", R"("phi", "phi": "tanh")"), {"phi", "tanh", "relu, relu2"}},
      {Edited(R"({"kind": "lssar", "p": 15})", "\"lssar\""),
       {"attention", "must be a JSON object"}},
      {Edited(R"({"kind": "lssar", "p": 15})", R"([{"kind": "lssa"}])"),
       {"attention has 1 elements", "n_layer 3"}},
      {Edited(R"({"kind": "lssar", "p": 15})", R"([{"kind": "lssa"}, {"kind": "x"}, 1])"),
       {"attention[1]", "kind", "x"}},
  };
  for (const auto& c : cases) {
    const std::string message = Rejection(c.text);
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

TEST(RopeTest, LongestAtABaseIsTheLastLengthThatHasIt) {
  constexpr int kLargest = std::numeric_limits<int>::max();
  ModelConfig config = Parsed(kGood);
  EXPECT_EQ(LongestAtRopeBase(config, 1), kLargest);
  config.dynamic_ntk_factor = 2.0;
  EXPECT_EQ(LongestAtRopeBase(config, 1), 64);
  EXPECT_EQ(LongestAtRopeBase(config, 64), 64);
  EXPECT_EQ(LongestAtRopeBase(config, 65), 128);
  EXPECT_EQ(LongestAtRopeBase(config, 1000), 1024);
  EXPECT_EQ(RopeBase(config, 1000), RopeBase(config, 1024));
  EXPECT_NE(RopeBase(config, 1024), RopeBase(config, 1025));
  EXPECT_EQ(LongestAtRopeBase(config, kLargest), kLargest);

  config.dynamic_ntk_factor.reset();
  config.rope_scaling.kind = RopeScaling::Kind::kLongRope;
  config.rope_scaling.original_length = 48;
  EXPECT_EQ(LongestAtRopeBase(config, 48), 48);
  EXPECT_EQ(LongestAtRopeBase(config, 49), kLargest);
}

TEST(RopeTest, AnglesFollowEachTokensPosition) {
  const std::vector<SequenceSlice> sequences{
      {.first_row = 0, .num_rows = 1, .first_position = 16383, .pages = {}},
      {.first_row = 1, .num_rows = 2, .first_position = 0, .pages = {}}};
  std::vector<double> frequencies(2);
  std::vector<float> angles(3 * 4);
  FillRopeAngles(ModelConfig{}, {.num_rows = 3, .sequences = sequences},
                 std::vector<double>{1e4, 100.0}, frequencies, angles);
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
