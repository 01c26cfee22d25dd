// Expected values: passkey.py run by CPython 3.11; texts by their length and the first 16 digits of
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

void ExpectDocument(const Expected& expected, PythonRandom* rng) {
  SCOPED_TRACE(expected.num_filler);
  const PasskeyDocument document = MakePasskeyDocument(expected.num_filler, expected.depth, rng);
  EXPECT_EQ(document.key, expected.key);
  EXPECT_EQ(document.text.size(), expected.num_bytes);
  EXPECT_EQ(HashOf(document.text), expected.hash);
}

TEST(PasskeyDocument, EqualsTheReference) {
  PythonRandom rng(7);
  ExpectDocument({0, std::nullopt, "21223", 245, "f3b0db920f3f93ab"}, &rng);
  ExpectDocument({1, std::nullopt, "25876", 335, "bc1f52b74813e171"}, &rng);
  ExpectDocument({2, std::nullopt, "4748", 423, "28930ee44e3e1e48"}, &rng);
  ExpectDocument({5, std::nullopt, "6169", 693, "a4e461ff2fdf3ac4"}, &rng);
  ExpectDocument({7, std::nullopt, "3802", 873, "f0b4ad5873e6f9fb"}, &rng);
  ExpectDocument({37, std::nullopt, "14071", 3575, "e7f762ebe7852ba0"}, &rng);
}

// Python rounds 2.5 to 2 and 3.5 to 4.
TEST(PasskeyDocument, ChosenDepthsRoundHalvesToEven) {
  PythonRandom rng(3);
  ExpectDocument({5, 0.5, "15596", 695, "dd6ef2e48d3e0350"}, &rng);
  ExpectDocument({7, 0.5, "38840", 875, "1e1bd41721c16eeb"}, &rng);
  ExpectDocument({3, 0.5, "35667", 515, "271dca45c4297ac3"}, &rng);
  ExpectDocument({4, 0.0, "8548", 603, "661380465f2d7644"}, &rng);
  ExpectDocument({4, 1.0, "24246", 605, "db3fa1c8e6a7a79d"}, &rng);
}

TEST(PasskeyDocument, HasTheTextOfTheReference) {
  PythonRandom rng(7);
  EXPECT_EQ(MakePasskeyDocument(1, 1.0, &rng).text,
            "There is an important info hidden inside a lot of irrelevant text. Find it and "
            "memorize them. I will quiz you about the important information there. The grass is "
            "green. The sky is blue. The sun is yellow. Here we go. There and back again. The pass "
            "key is 21223. Remember it. 21223 is the pass key. What is the pass key? The pass key "
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
  EXPECT_EQ(trials[0].document.key, "21223");
  EXPECT_EQ(trials[2].document.key, "21223");
  EXPECT_EQ(trials[1].document.key, "25876");
  EXPECT_EQ(trials[3].document.key, "25876");
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
