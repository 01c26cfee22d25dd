#include "runtime/ngram_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace lssar {
namespace {

// The longest match, of equal ones the latest, by comparing every position.
struct Match {
  int length = 0;
  int position = 0;
};
Match NaiveMatch(const std::vector<int32_t>& tokens, int min_length, int max_length) {
  const int end = int(tokens.size());
  Match best;
  for (int at = end - 1; at >= min_length; --at) {
    int length = 0;
    while (length < std::min(max_length, at) &&
           tokens[size_t(at - 1 - length)] == tokens[size_t(end - 1 - length)]) {
      ++length;
    }
    if (length >= min_length && length > best.length) best = {.length = length, .position = at};
  }
  return best;
}

std::vector<int32_t> Draft(NgramIndex* index, const std::vector<int32_t>& tokens, int num_draft) {
  std::vector<int32_t> draft;
  if (index->Match(tokens) > 0) index->AppendDraft(tokens, num_draft, &draft);
  return draft;
}

TEST(NgramIndexTest, FindsWhatARescanFinds) {
  std::mt19937_64 random(1);
  int num_matches = 0;
  for (int round = 0; round < 60; ++round) {
    const int min_length = 1 + int(random() % 4);
    const int max_length = min_length + int(random() % 4);
    // Few enough tokens that no chain has more candidates than a match compares.
    const int vocab_size = 200 + int(random() % 200);
    NgramIndex index(min_length, max_length, 300);
    std::vector<int32_t> tokens;
    while (tokens.size() < 300) {
      const bool is_copy = tokens.size() > 20 && random() % 8 == 0;
      const size_t from = is_copy ? random() % (tokens.size() - 12) : 0;
      for (size_t i = 0; i < (is_copy ? 10 : 1) && tokens.size() < 300; ++i) {
        tokens.push_back(is_copy ? tokens[from + i] : int32_t(random() % uint64_t(vocab_size)));
      }
      const Match expected = NaiveMatch(tokens, min_length, max_length);
      ASSERT_EQ(index.Match(tokens), expected.length);
      if (expected.length == 0) continue;
      ++num_matches;
      std::vector<int32_t> draft;
      index.AppendDraft(tokens, 5, &draft);
      ASSERT_EQ(draft.size(), 5u);
      for (size_t i = 0; i < draft.size(); ++i) {
        const size_t from_idx = size_t(expected.position) + i;
        ASSERT_EQ(draft[i],
                  from_idx < tokens.size() ? tokens[from_idx] : draft[from_idx - tokens.size()]);
      }
    }
  }
  EXPECT_GT(num_matches, 1000);
}

TEST(NgramIndexTest, DraftsALoopToAnyLength) {
  NgramIndex index(2, 4, 100);
  EXPECT_EQ(Draft(&index, {1, 2, 3, 1, 2, 3, 1, 2}, 7),
            (std::vector<int32_t>{3, 1, 2, 3, 1, 2, 3}));
  NgramIndex same(1, 4, 100);
  EXPECT_EQ(Draft(&same, {9, 9}, 3), (std::vector<int32_t>{9, 9, 9}));
}

TEST(NgramIndexTest, PrefersTheLongestThenTheLatestMatch) {
  NgramIndex index(1, 3, 100);
  EXPECT_EQ(Draft(&index, {1, 2, 3, 40, 2, 3, 50, 7, 1, 2, 3}, 1), std::vector<int32_t>{40});
  NgramIndex latest(1, 2, 100);
  EXPECT_EQ(Draft(&latest, {1, 2, 3, 40, 2, 3, 50, 7, 1, 2, 3}, 1), std::vector<int32_t>{50});
}

TEST(NgramIndexTest, FindsNothingInShortOrNewText) {
  NgramIndex index(3, 4, 100);
  for (const std::vector<int32_t>& tokens : std::vector<std::vector<int32_t>>{
           {}, {1}, {1, 1}, {1, 1, 1}, {1, 1, 1, 2}, {1, 1, 1, 2, 1, 1}}) {
    EXPECT_EQ(index.Match(tokens), 0);
  }
  EXPECT_EQ(index.Match(std::vector<int32_t>{1, 1, 1, 2, 1, 1, 1}), 3);
}

// A text of one token has one chain of all positions; a match compares a bounded number.
TEST(NgramIndexTest, LongChainsAreCut) {
  NgramIndex index(1, 64, 100000);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 50000; ++i) tokens.push_back(i % 2);
  for (int i = 0; i < 50000; ++i) {
    tokens.push_back(i % 2);
    ASSERT_EQ(index.Match(tokens), 64);
  }
}

}  // namespace
}  // namespace lssar
