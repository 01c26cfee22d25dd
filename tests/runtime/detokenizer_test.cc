#include "runtime/detokenizer.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_checkpoint.h"

namespace lssar {
namespace {

struct Outcome {
  std::string text;
  std::string match;  // empty: none
  bool operator==(const Outcome&) const = default;
};

Outcome MatchAll(const std::vector<std::string>& strings, const std::vector<std::string>& parts) {
  StopMatcher matcher(std::make_shared<StopStrings>(strings));
  Outcome outcome;
  for (const std::string& part : parts) matcher.Push(part, &outcome.text);
  matcher.Finish(&outcome.text);
  if (matcher.Match()) outcome.match = strings[size_t(*matcher.Match())];
  return outcome;
}

// The first match to complete in the whole text; of those that complete there, the longest.
Outcome Naive(const std::vector<std::string>& strings, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& s : strings) {
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0 &&
          s.size() > longest.size()) {
        longest = s;
      }
    }
    if (!longest.empty()) return {text.substr(0, end - longest.size()), longest};
  }
  return {text, ""};
}

TEST(StopMatcher, TheFirstToCompleteWinsThenTheLongest) {
  EXPECT_EQ(MatchAll({"abcd", "bc"}, {"xabcd"}), (Outcome{"xa", "bc"}));
  EXPECT_EQ(MatchAll({"bc", "abc"}, {"xabcd"}), (Outcome{"x", "abc"}));
  EXPECT_EQ(MatchAll({"aab"}, {"aaa", "ab"}), (Outcome{"aa", "aab"}));
  EXPECT_EQ(MatchAll({"stop"}, {"no st", "op here"}), (Outcome{"no ", "stop"}));
  EXPECT_EQ(MatchAll({"stop"}, {"no sto"}), (Outcome{"no sto", ""}));
}

TEST(StopMatcher, TheTextMayIncludeTheMatch) {
  const std::vector<std::vector<std::string>> splits = {
      {"no st", "op here"}, {"no stop", " here"}, {"no ", "stop"}};
  for (const std::vector<std::string>& parts : splits) {
    StopMatcher matcher(std::make_shared<StopStrings>(std::vector<std::string>{"stop", "op"},
                                                      /*are_in_text=*/true));
    std::string text;
    for (const std::string& part : parts) matcher.Push(part, &text);
    matcher.Finish(&text);
    EXPECT_EQ(text, "no stop");
    EXPECT_EQ(matcher.Match(), 0);
  }
}

TEST(StopMatcher, EqualsTheNaiveSearchHoweverTheTextIsSplit) {
  std::mt19937 random(17);
  int num_matches = 0;
  for (int round = 0; round < 30000; ++round) {
    const unsigned alphabet = 1 + unsigned(random() % 3);
    const auto letters = [&](size_t count) {
      std::string s;
      for (size_t i = 0; i < count; ++i) s.push_back(char('a' + random() % alphabet));
      return s;
    };
    std::vector<std::string> strings;
    for (size_t n = 1 + random() % 4; n > 0; --n) strings.push_back(letters(1 + random() % 7));
    const std::string text = letters(random() % 40);
    std::vector<std::string> parts;
    for (size_t at = 0; at < text.size();) {
      const size_t size = random() % 5;
      parts.push_back(text.substr(at, size));
      at += size;
    }
    const Outcome expected = Naive(strings, text);
    ASSERT_EQ(MatchAll(strings, parts), expected)
        << testing::PrintToString(strings) << " in " << text;
    num_matches += !expected.match.empty();
  }
  EXPECT_GT(num_matches, 1000);
}

// Withholds exactly the longest end of the text that begins a stop string.
TEST(StopMatcher, WithholdsNoMoreThanItMust) {
  std::mt19937 random(23);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> strings(1 + random() % 3);
    for (std::string& s : strings) {
      for (size_t n = 2 + random() % 5; n > 0; --n) s.push_back(char('a' + random() % 2));
    }
    StopMatcher matcher(std::make_shared<StopStrings>(strings));
    std::string text, sent;
    for (int i = 0; i < 30 && !matcher.Match(); ++i) {
      text.push_back(char('a' + random() % 2));
      matcher.Push(text.substr(text.size() - 1), &sent);
      if (matcher.Match()) break;
      size_t num_withheld = 0;
      for (const std::string& s : strings) {
        for (size_t n = 1; n < s.size(); ++n) {
          if (text.ends_with(s.substr(0, n))) num_withheld = std::max(num_withheld, n);
        }
      }
      ASSERT_EQ(sent, text.substr(0, text.size() - num_withheld));
    }
  }
}

TEST(StopMatcher, ALongBorderedStringCostsLinearTime) {
  const std::string stop = std::string(255, 'a') + "b";
  std::string out;
  StopMatcher matcher(std::make_shared<StopStrings>(std::vector<std::string>(16, stop)));
  const std::string text(200000, 'a');
  matcher.Push(text, &out);
  EXPECT_EQ(out.size(), text.size() - 255);
  matcher.Push("b", &out);
  EXPECT_TRUE(matcher.Match().has_value());
  EXPECT_EQ(out.size(), text.size() - 255);
}

bool IsWholeUtf8(const std::string& text) { return !FindInvalidUtf8(text).has_value(); }

// The parts add up to the decoding of the whole text, which ends where the whole text matches.
TEST(Detokenizer, StreamedTextEqualsTheTextDecodedAtOnce) {
  const FakeTokenizer tokenizer(64);
  std::mt19937 random(29);
  const std::vector<std::vector<std::string>> stop_sets = {
      {}, {"\u00e9"}, {"ab", "cab"}, {" a\u00e9", "\U0001F600"}, {"\n", "b\uFFFD"}};
  int num_matches = 0;
  for (int round = 0; round < 5000; ++round) {
    const auto& stops = stop_sets[random() % stop_sets.size()];
    std::vector<int32_t> ids(random() % 30);
    for (int32_t& id : ids) id = int32_t(random() % 64);
    const size_t min_tokens = random() % 4 == 0 ? random() % 10 : 0;

    StreamDecoder decoder(&tokenizer, /*continues_text=*/true);
    std::string unmatched, matched;
    for (size_t i = 0; i < ids.size(); ++i) {
      (i < min_tokens ? unmatched : matched) += decoder.Push(ids[i]);
    }
    (ids.size() <= min_tokens && !ids.empty() ? unmatched : matched) += decoder.Finish();
    const Outcome expected = Naive(stops, matched);

    Detokenizer detokenizer(&tokenizer,
                            stops.empty() ? nullptr : std::make_shared<StopStrings>(stops));
    std::string sent;
    for (size_t i = 0; i < ids.size(); ++i) {
      std::string part;
      detokenizer.Push(ids[i], i >= min_tokens, &part);
      ASSERT_TRUE(IsWholeUtf8(part));
      sent += part;
      if (detokenizer.StopString() != nullptr) break;
    }
    detokenizer.Finish(&sent);
    ASSERT_EQ(sent, unmatched + expected.text);
    ASSERT_EQ(detokenizer.StopString() == nullptr ? "" : *detokenizer.StopString(), expected.match);
    num_matches += !expected.match.empty();
  }
  EXPECT_GT(num_matches, 500);
}

// The last token has to be one after min_tokens, whatever it leaves incomplete.
TEST(Detokenizer, AnIncompleteCharacterBeforeMinTokensIsNotSearched) {
  const FakeTokenizer tokenizer(64);
  const auto is_incomplete = [&](int32_t id) {
    StreamDecoder decoder(&tokenizer, /*continues_text=*/true);
    return decoder.Push(id).empty() && decoder.Finish() == "\uFFFD";
  };
  int32_t incomplete = 0;
  while (incomplete < 64 && !is_incomplete(incomplete)) ++incomplete;
  ASSERT_LT(incomplete, 64);
  for (const bool match : {false, true}) {
    Detokenizer detokenizer(&tokenizer,
                            std::make_shared<StopStrings>(std::vector<std::string>{"\uFFFD"}));
    std::string text;
    detokenizer.Push(incomplete, match, &text);
    detokenizer.Finish(&text);
    EXPECT_EQ(detokenizer.StopString() != nullptr, match);
    EXPECT_EQ(text, match ? "" : "\uFFFD");
  }
}

TEST(Detokenizer, WithoutATokenizerThereIsNoText) {
  Detokenizer detokenizer(nullptr, nullptr);
  std::string text;
  detokenizer.Push(5, true, &text);
  detokenizer.Finish(&text);
  EXPECT_EQ(text, "");
  EXPECT_EQ(detokenizer.StopString(), nullptr);
}

}  // namespace
}  // namespace lssar
