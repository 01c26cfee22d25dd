// Expected values: models/training/passkey.py; texts by their length and the first 16 digits of
// their SHA-256.
#include "clients/cli/passkey.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/sha256.h"

namespace lssar::cli {
namespace {

struct Expected {
  int num_filler;
  std::optional<double> depth;
  std::string key;
  size_t num_bytes;
  std::string hash;
};

std::string HashOf(const std::string& text) {
  Sha256 hash;
  hash.Add(text);
  return hash.ShortHex();
}

void ExpectDocument(const Expected& expected, PasskeyRandom* random) {
  SCOPED_TRACE(expected.num_filler);
  const PasskeyDocument document = MakePasskeyDocument(expected.num_filler, expected.depth, random);
  EXPECT_EQ(document.key, expected.key);
  EXPECT_EQ(document.text.size(), expected.num_bytes);
  EXPECT_EQ(HashOf(document.text), expected.hash);
}

TEST(PasskeyRandom, IsSplitMix64) {
  EXPECT_EQ(PasskeyRandom(0).Next(), 0xE220A8397B1DCDAFu);
  PasskeyRandom random(~uint64_t{0});
  EXPECT_EQ(random.Next(), 16490336266968443936u);
  EXPECT_EQ(random.Next(), 16834447057089888969u);
  EXPECT_EQ(random.Next(), 4048727598324417001u);
}

TEST(PasskeyDocument, EqualsTheGoldenTexts) {
  PasskeyRandom random(7);
  ExpectDocument({0, std::nullopt, "24488", 245, "c2c27fe90ae94ba1"}, &random);
  ExpectDocument({1, std::nullopt, "9347", 333, "fd148a8ea391a8b0"}, &random);
  ExpectDocument({2, std::nullopt, "23675", 425, "c51b9130533677f2"}, &random);
  ExpectDocument({5, std::nullopt, "21799", 695, "171c1e76584808c9"}, &random);
  ExpectDocument({7, std::nullopt, "27986", 875, "a1557e64ea243fbf"}, &random);
  ExpectDocument({37, std::nullopt, "21084", 3575, "4ebf088a66667d5c"}, &random);
}

// 2.5 becomes 2, and 3.5 becomes 4.
TEST(PasskeyDocument, ChosenDepthsRoundHalvesToEven) {
  PasskeyRandom random(3);
  ExpectDocument({5, 0.5, "39054", 695, "3a7f43608d95a2be"}, &random);
  ExpectDocument({7, 0.5, "11562", 875, "3874799cefb17082"}, &random);
  ExpectDocument({3, 0.5, "37730", 515, "e0dfd9f96153ead6"}, &random);
  ExpectDocument({4, 0.0, "35648", 605, "47b4fdd3c6ca4359"}, &random);
  ExpectDocument({4, 1.0, "33367", 605, "b761ccb54cb03706"}, &random);
}

TEST(PasskeyDocument, HasThisText) {
  PasskeyRandom random(7);
  EXPECT_EQ(MakePasskeyDocument(1, 1.0, &random).text,
            "There is an important info hidden inside a lot of irrelevant text. Find it and "
            "memorize them. I will quiz you about the important information there. The grass is "
            "green. The sky is blue. The sun is yellow. Here we go. There and back again. The pass "
            "key is 24488. Remember it. 24488 is the pass key. What is the pass key? The pass key "
            "is");
}

TEST(NumPasskeyFiller, LeavesSpaceForTheFrame) {
  EXPECT_EQ(NumPasskeyFiller(109, 24), 0);
  EXPECT_EQ(NumPasskeyFiller(133, 24), 0);
  EXPECT_EQ(NumPasskeyFiller(134, 24), 1);
  EXPECT_EQ(NumPasskeyFiller(1004, 24), 37);
}

TEST(MakePasskeyTrials, EachLengthStartsWithTheSeed) {
  const PasskeyOptions options{.lengths = {256, 1024}, .num_trials = {2, 3}, .depths = {}};
  const auto trials = MakePasskeyTrials(options, 24);
  ASSERT_EQ(trials.size(), 5u);
  EXPECT_EQ(trials[0].length, 256);
  EXPECT_EQ(trials[2].length, 1024);
  EXPECT_EQ(trials[0].document.key, "24488");
  EXPECT_EQ(trials[2].document.key, "24488");
  EXPECT_EQ(trials[1].document.key, "9347");
  EXPECT_EQ(trials[3].document.key, "9347");
}

TEST(MakePasskeyTrials, GivenDepthsHaveAllTrialsEach) {
  const PasskeyOptions options{.lengths = {512}, .num_trials = {2}, .depths = {0.0, 1.0}};
  const auto trials = MakePasskeyTrials(options, 24);
  ASSERT_EQ(trials.size(), 4u);
  EXPECT_EQ(trials[1].document.depth, 0.0);
  EXPECT_EQ(trials[2].document.depth, 1.0);
}

void ExpectInterval(int num_hits, int num_trials, double low, double high) {
  const Interval interval = WilsonInterval(num_hits, num_trials);
  EXPECT_NEAR(interval.low, low, 1e-12) << num_hits << " of " << num_trials;
  EXPECT_NEAR(interval.high, high, 1e-12) << num_hits << " of " << num_trials;
}

// The formula in Python's double arithmetic.
TEST(WilsonInterval, EqualsTheFormula) {
  ExpectInterval(5, 10, 0.236593090512564, 0.7634069094874361);
  ExpectInterval(1, 3, 0.06149194472039621, 0.7923403991979522);
  ExpectInterval(57, 100, 0.47215389549212305, 0.6626670147588988);
}

TEST(WilsonInterval, IsNotEmptyAtZeroAndAllHits) {
  ExpectInterval(0, 10, 0, 0.2775327998628892);
  ExpectInterval(10, 10, 0.7224672001371107, 1);
  ExpectInterval(0, 0, 0, 1);
}

}  // namespace
}  // namespace lssar::cli
