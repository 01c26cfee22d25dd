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
