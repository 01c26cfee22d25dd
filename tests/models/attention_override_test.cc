#include "models/attention_override.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace lssar {
namespace {

using ::testing::HasSubstr;

ModelConfig ConfigOf(std::vector<AttentionSpec> layers) {
  ModelConfig config;
  config.max_position_embeddings = 64;
  config.num_hidden_layers = int(layers.size());
  config.num_attention_heads = 3;
  for (AttentionSpec& spec : layers) spec.max_position_embeddings = 64;
  config.attention = std::move(layers);
  return config;
}

const AttentionSpec kLssar15 = {.kind = AttentionKind::kLssar, .p = 15};
const AttentionSpec kLssar3 = {.kind = AttentionKind::kLssar, .p = 3};
const AttentionSpec kSoftmax = {.kind = AttentionKind::kSoftmax};

std::string NameAfter(const ModelConfig& config, const AttentionChange& change) {
  const auto layers = ChangeAttention(config, change);
  return layers.ok() ? DescribeAttention(*layers) : std::string(layers.status().message());
}

TEST(AttentionOverrideTest, ChangesWhatIsGivenAndKeepsTheRest) {
  const ModelConfig config = ConfigOf({kLssar15, kLssar15});
  EXPECT_EQ(NameAfter(config, {.p = 5}), "lssar p=5");
  EXPECT_EQ(NameAfter(config, {.p = 0.1}), "lssar p=0.1");
  EXPECT_EQ(NameAfter(config, {.kind = "softmax"}), "softmax");
  EXPECT_EQ(NameAfter(config, {.kind = "softmax_r"}), "softmax_r p=15");
  EXPECT_EQ(NameAfter(config, {.p = 2, .kind = "sigmoid_r"}), "sigmoid_r p=2");
  EXPECT_EQ(NameAfter(config, {.kind = "phi", .phi = "relu"}), "phi phi=relu");
  const auto sigmoid = ChangeAttention(config, {.kind = "sigmoid"});
  ASSERT_TRUE(sigmoid.ok());
  EXPECT_EQ(sigmoid->front().max_position_embeddings, 64);
}

TEST(AttentionOverrideTest, LayersMayDiffer) {
  const ModelConfig config = ConfigOf({kLssar15, kSoftmax, kLssar3});
  EXPECT_EQ(DescribeAttention(config.attention), "lssar p=15 (0), softmax (1), lssar p=3 (2)");
  EXPECT_EQ(NameAfter(config, {.p = 5}), "lssar p=5 (0), softmax (1), lssar p=5 (2)");
  EXPECT_EQ(NameAfter(config, {.kind = "lssa"}), "lssa");
  EXPECT_THAT(NameAfter(config, {.kind = "lssar"}),
              HasSubstr("attention_override.p is missing: kind \"lssar\" re-weights"));
  EXPECT_EQ(DescribeAttention(ConfigOf({kLssar3, kLssar3, kSoftmax}).attention),
            "lssar p=3 (0-1), softmax (2)");
}

TEST(AttentionOverrideTest, WindowsAndAlibiStay) {
  const AttentionSpec window = {.kind = AttentionKind::kSoftmax, .window = 64};
  EXPECT_EQ(DescribeAttention(ConfigOf({window, kSoftmax}).attention),
            "softmax window=64 (0), softmax (1)");
  EXPECT_EQ(NameAfter(ConfigOf({window}), {.kind = "softmax"}), "softmax window=64");
  EXPECT_THAT(NameAfter(ConfigOf({window}), {.p = 3, .kind = "lssar"}),
              HasSubstr("attention_override.kind is \"lssar\", but the checkpoint has a sliding "
                        "window"));
  const AttentionSpec alibi = {.kind = AttentionKind::kSoftmax, .has_alibi = true};
  EXPECT_THAT(NameAfter(ConfigOf({alibi}), {.kind = "sigmoid"}), HasSubstr("has ALiBi"));
}

TEST(AttentionOverrideTest, EqualFunctionsAreTheSame) {
  const ModelConfig config = ConfigOf({kLssar15, kLssar15});
  const auto same = ChangeAttention(config, {.p = 15, .kind = "lssar"});
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE(IsSameAttention(*same, config.attention));
  EXPECT_FALSE(IsSameAttention(*ChangeAttention(config, {.p = 14.5}), config.attention));
  EXPECT_FALSE(IsSameAttention(*same, std::vector(1, kLssar15)));
  // softmax has no p.
  AttentionSpec softmax = kSoftmax;
  softmax.p = 7;
  EXPECT_TRUE(IsSameAttention(std::vector(1, softmax), std::vector(1, kSoftmax)));
}

TEST(AttentionOverrideTest, PowersByLayerHeadAndLength) {
  const ModelConfig two = ConfigOf({kLssar15, kLssar15});
  EXPECT_EQ(NameAfter(two, {.p_by_layer = {3, 5}}), "lssar p=3 (0), lssar p=5 (1)");
  EXPECT_EQ(NameAfter(two, {.p_by_head = {3, 5, 0.5}}), "lssar p=3/5/0.5");
  EXPECT_EQ(NameAfter(two, {.p_by_head = {3, 5, 7, 1, 1, 1}}), "lssar p=3/5/7 (0), lssar p=1 (1)");
  EXPECT_EQ(NameAfter(two, {.p_by_length = {{.min_keys = 256, .power = {.p = 5}}}}),
            "lssar p=15 N>=256:5");
  EXPECT_EQ(NameAfter(two, {.p = 2,
                            .kind = "softmax_r",
                            .p_by_length = {{.min_keys = 2, .power = {.by_head = {1, 2, 3}}},
                                            {.min_keys = 9, .power = {.by_layer = {4, 5}}}}}),
            "softmax_r p=2 N>=2:1/2/3 N>=9:4 (0), softmax_r p=2 N>=2:1/2/3 N>=9:5 (1)");
  EXPECT_EQ(
      NameAfter(two, {.p_by_head = {1, 2, 3}, .p_by_length = {{.min_keys = 7, .power = {.p = 4}}}}),
      "lssar p=1/2/3 N>=7:4");
  // Layers that do not re-weight have no power, and each keeps its own where none is given.
  const ModelConfig mixed = ConfigOf({kLssar15, kSoftmax, kLssar3});
  EXPECT_EQ(NameAfter(mixed, {.p_by_layer = {1, 2, 4}}),
            "lssar p=1 (0), softmax (1), lssar p=4 (2)");
  EXPECT_EQ(NameAfter(mixed, {.p_by_length = {{.min_keys = 8, .power = {.p = 3}}}}),
            "lssar p=15 N>=8:3 (0), softmax (1), lssar p=3 (2)");
}

TEST(AttentionOverrideTest, PowersOfARow) {
  const ModelConfig config = ConfigOf({kLssar15, kLssar3});
  const auto layers = ChangeAttention(
      config, {.p_by_length = {{.min_keys = 10, .power = {.by_head = {1, 2, 3, 4, 5, 6}}},
                               {.min_keys = 20, .power = {.p = 7}}}});
  ASSERT_TRUE(layers.ok()) << layers.status();
  for (int head = 0; head < 3; ++head) {
    EXPECT_EQ((*layers)[0].PowerOf(head, 9), 15);
    EXPECT_EQ((*layers)[1].PowerOf(head, 9), 3);
    EXPECT_EQ((*layers)[0].PowerOf(head, 10), 1 + head);
    EXPECT_EQ((*layers)[1].PowerOf(head, 19), 4 + head);
    EXPECT_EQ((*layers)[1].PowerOf(head, 20), 7);
  }
}

TEST(AttentionOverrideTest, EqualPowersAreTheSameHoweverTheyAreGiven) {
  const ModelConfig config = ConfigOf({kLssar15, kLssar15});
  const std::vector<AttentionChange> all_own = {
      {.p_by_layer = {15, 15}},
      {.p_by_head = {15, 15, 15}},
      {.p_by_head = {15, 15, 15, 15, 15, 15}},
      {.p_by_length = {{.min_keys = 5, .power = {.p = 15}},
                       {.min_keys = 6, .power = {.by_head = {15, 15, 15}}}}}};
  for (const AttentionChange& change : all_own) {
    EXPECT_TRUE(IsSameAttention(*ChangeAttention(config, change), config.attention));
    EXPECT_EQ(NameAfter(config, change), "lssar p=15");
  }
  const AttentionChange shorter = {.p = 3, .p_by_length = {{.min_keys = 9, .power = {.p = 5}}}};
  const AttentionChange longer = {.p_by_head = {3, 3, 3},
                                  .p_by_length = {{.min_keys = 4, .power = {.p = 3}},
                                                  {.min_keys = 9, .power = {.by_layer = {5, 5}}}}};
  EXPECT_TRUE(IsSameAttention(*ChangeAttention(config, shorter), *ChangeAttention(config, longer)));
  EXPECT_EQ(NameAfter(config, shorter), NameAfter(config, longer));
  EXPECT_FALSE(IsSameAttention(*ChangeAttention(config, shorter), config.attention));
  const AttentionChange other = {.p = 3, .p_by_length = {{.min_keys = 10, .power = {.p = 5}}}};
  EXPECT_FALSE(IsSameAttention(*ChangeAttention(config, shorter), *ChangeAttention(config, other)));
}

// Names go into receipts and into the keys of cached pages.
TEST(AttentionOverrideTest, LongNamesAreCutAndStayDifferent) {
  std::vector<double> powers;
  for (int i = 0; i < 300; ++i) powers.push_back(1 + i / 7.0);
  const ModelConfig config = ConfigOf(std::vector(100, kLssar15));
  const std::string name = NameAfter(config, {.p_by_head = powers});
  EXPECT_EQ(name.size(), 1024u);
  EXPECT_THAT(name, ::testing::StartsWith("lssar p=1/1.1428571428571428/"));
  EXPECT_THAT(name, ::testing::ContainsRegex("\\.\\.\\. sha256 [0-9a-f]+$"));
  powers.back() = 2;
  EXPECT_NE(NameAfter(config, {.p_by_head = powers}), name);
}

TEST(AttentionOverrideTest, RefusesListsOfAnotherLengthAndTwoPowers) {
  const ModelConfig config = ConfigOf({kLssar15, kLssar15});
  const auto refusal = [&](const AttentionChange& change) { return NameAfter(config, change); };
  EXPECT_EQ(refusal({.p_by_layer = {3}}),
            "attention_override.p_by_layer has 1 numbers; it must have num_hidden_layers = 2");
  EXPECT_EQ(
      refusal({.p_by_head = {3, 5}}),
      "attention_override.p_by_head has 2 numbers; it must have num_attention_heads = 3, or 6 "
      "for the heads of each layer");
  EXPECT_EQ(refusal({.p = 3, .p_by_layer = {3, 5}}),
            "attention_override.p_by_layer is set beside another power; set one of p, p_by_layer "
            "and p_by_head");
  EXPECT_THAT(refusal({.p_by_layer = {3, 5}, .p_by_head = {1, 2, 3}}),
              HasSubstr("attention_override.p_by_head is set beside another power"));
  for (const double p : {0.0, -1.0, 1001.0, std::numeric_limits<double>::infinity(),
                         std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(refusal({.p_by_layer = {3, p}}), HasSubstr("attention_override.p_by_layer[1] is "));
    EXPECT_THAT(refusal({.p_by_head = {3, 5, p}}), HasSubstr("it must be in (0, 1000]"));
    EXPECT_THAT(refusal({.p_by_length = {{.min_keys = 4, .power = {.p = p}}}}),
                HasSubstr("attention_override.p_by_length[0].p is "));
  }
  EXPECT_THAT(refusal({.p_by_layer = {5e-324, 1}}),
              HasSubstr("p_by_layer[0] is 5e-324; it must be at least 1.17549"));
  EXPECT_EQ(refusal({.p_by_length = {{.min_keys = 4}}}),
            "attention_override.p_by_length[0].p is missing; set one of p, p_by_layer and "
            "p_by_head");
  EXPECT_EQ(refusal({.p_by_length = {{.min_keys = 1, .power = {.p = 3}}}}),
            "attention_override.p_by_length[0].min_keys is 1; it must be at least 2");
  EXPECT_EQ(refusal({.p_by_length = {{.min_keys = 5, .power = {.p = 3}},
                                     {.min_keys = 5, .power = {.p = 4}}}}),
            "attention_override.p_by_length[1].min_keys is 5; it must be at least 6, above that of "
            "the entry before");
  EXPECT_THAT(refusal({.p_by_length = {{.min_keys = 5, .power = {.by_head = {1}}}}}),
              HasSubstr("attention_override.p_by_length[0].p_by_head has 1 numbers"));
  AttentionChange many;
  for (int i = 0; i < 65; ++i) many.p_by_length.push_back({.min_keys = 2 + i, .power = {.p = 3}});
  EXPECT_EQ(refusal(many), "attention_override.p_by_length has 65 entries; it may have at most 64");
  EXPECT_THAT(NameAfter(ConfigOf({kSoftmax}), {.p_by_head = {1, 2, 3}}),
              HasSubstr("attention_override.p_by_head is set, but softmax does not re-weight"));
  EXPECT_THAT(refusal({.kind = "lssa", .p_by_length = {{.min_keys = 5, .power = {.p = 3}}}}),
              HasSubstr("attention_override.p_by_length is set, but lssa does not re-weight"));
  // A kind with a power needs one for the rows before the first step.
  EXPECT_THAT(NameAfter(ConfigOf({kSoftmax}),
                        {.kind = "lssar", .p_by_length = {{.min_keys = 5, .power = {.p = 3}}}}),
              HasSubstr("attention_override.p is missing: kind \"lssar\" re-weights"));
}

TEST(AttentionOverrideTest, RefusesWhatHasNoMeaning) {
  const ModelConfig lssar = ConfigOf({kLssar15}), softmax = ConfigOf({kSoftmax});
  EXPECT_THAT(NameAfter(lssar, {}), HasSubstr("attention_override.p and kind are not set"));
  for (const double p : {0.0, -1.0, 1000.5, std::numeric_limits<double>::infinity(),
                         std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(NameAfter(lssar, {.p = p}), HasSubstr("it must be in (0, 1000]"));
  }
  EXPECT_EQ(NameAfter(lssar, {.p = 1000}), "lssar p=1000");
  EXPECT_THAT(NameAfter(lssar, {.kind = "lsar"}),
              HasSubstr("attention_override.kind is \"lsar\"; it must be one of softmax, lssa"));
  EXPECT_THAT(NameAfter(lssar, {.kind = "phi"}), HasSubstr("attention_override.phi is missing"));
  EXPECT_THAT(NameAfter(lssar, {.kind = "phi", .phi = "tanh"}),
              HasSubstr("phi is \"tanh\"; with kind \"phi\" it must be one of relu"));
  EXPECT_THAT(NameAfter(lssar, {.p = 3, .phi = "relu"}), HasSubstr("only with kind \"phi\""));
  EXPECT_THAT(NameAfter(softmax, {.p = 3}), HasSubstr("softmax does not re-weight"));
  EXPECT_THAT(NameAfter(lssar, {.p = 3, .kind = "lssa"}), HasSubstr("lssa does not re-weight"));
}

}  // namespace
}  // namespace lssar
