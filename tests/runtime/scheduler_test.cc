#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace lssar {
namespace {

using Tokens = std::vector<int>;

// Tokens of each sequence.
Tokens Divide(const TokenBudget::Limits& limits, const std::vector<TokenDemand>& sequences) {
  Tokens num_tokens = {99, 99};
  TokenBudget(limits).Divide(sequences, &num_tokens);
  return num_tokens;
}

Tokens Divide(int max_num_batched_tokens, const std::vector<int>& pending) {
  std::vector<TokenDemand> sequences;
  for (const int num_pending : pending) sequences.push_back({.num_pending = num_pending});
  return Divide({.max_num_batched_tokens = max_num_batched_tokens}, sequences);
}

TEST(TokenBudget, NoSequencesNoTokens) { EXPECT_EQ(Divide(8, std::vector<int>{}), Tokens{}); }

TEST(TokenBudget, DecodesComeFirstAndPromptsGetTheRest) {
  EXPECT_EQ(Divide(8, {100, 1, 1, 100}), (Tokens{6, 1, 1, 0}));
}

TEST(TokenBudget, PromptsRunInOrderOfArrival) {
  EXPECT_EQ(Divide(16, {5, 7, 9}), (Tokens{5, 7, 4}));
}

TEST(TokenBudget, TheFirstPromptAdvancesBesideAsManyDecodesAsCanRun) {
  EXPECT_EQ(Divide(4, {1, 1, 50, 1}), (Tokens{1, 1, 1, 1}));
}

TEST(TokenBudget, KeepsEveryRuleForRandomSequences) {
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    const int max_num_batched_tokens = 1 + int(random() % 40);
    std::vector<int> pending(random() % size_t(max_num_batched_tokens + 1));
    for (int& p : pending) p = random() % 2 == 0 ? 1 : 1 + int(random() % 60);
    const Tokens tokens = Divide(max_num_batched_tokens, pending);
    ASSERT_EQ(tokens, Divide(max_num_batched_tokens, pending)) << "pure";
    ASSERT_EQ(tokens.size(), pending.size());

    int num_tokens = 0;
    for (size_t i = 0; i < pending.size(); ++i) {
      ASSERT_GE(tokens[i], 0);
      ASSERT_LE(tokens[i], pending[i]);
      num_tokens += tokens[i];
    }
    ASSERT_LE(num_tokens, max_num_batched_tokens);
    int num_wanted = 0;
    for (const int p : pending) num_wanted += p;
    ASSERT_EQ(num_tokens, std::min(num_wanted, max_num_batched_tokens)) << "the budget is used";
    bool is_earlier_done = true;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (pending[i] == 1) {
        ASSERT_EQ(tokens[i], 1) << "every decode runs";
      } else {
        ASSERT_TRUE(is_earlier_done || tokens[i] == 0) << "a later prompt overtook an earlier one";
        is_earlier_done = is_earlier_done && tokens[i] == pending[i];
      }
    }
  }
}

constexpr TokenBudget::Limits kShared = {
    .max_num_batched_tokens = 512, .max_num_partial_prefills = 2, .chunked_prefill_size = 64};

constexpr TokenDemand kDecode = {.num_pending = 1, .first_position = 500, .is_streaming = true};

TEST(TokenBudget, PromptsUseTheWholeBudgetWhenNoReaderWaits) {
  const TokenDemand prompt = {.num_pending = 16000, .is_streaming = true};
  EXPECT_EQ(Divide(kShared, {prompt}), (Tokens{512}));
  EXPECT_EQ(Divide(kShared, {prompt, kDecode}), (Tokens{62, 1}));
  const TokenDemand one_score_token = {.num_pending = 1, .first_position = 500};
  EXPECT_EQ(Divide(kShared, {prompt, one_score_token}), (Tokens{511, 1}))
      << "no reader waits for it";
}

TEST(TokenBudget, TokensDeepInAPromptCountForMore) {
  int num_tokens_before = 64;
  for (const int first_position : {0, 2048, 8192, 16384}) {
    const int num_tokens =
        Divide(kShared, {{.num_pending = 10000, .first_position = first_position}, kDecode})[0];
    EXPECT_LT(num_tokens, num_tokens_before);
    EXPECT_NEAR(num_tokens, 64.0 / (1 + double(first_position) / kKeysPerTokenCost), 2);
    num_tokens_before = num_tokens;
  }
  const TokenDemand deepest = {.num_pending = 10, .first_position = 1 << 20};
  EXPECT_EQ(Divide(kShared, {deepest, kDecode}), (Tokens{1, 1}))
      << "the first prompt always gets a token";
}

TEST(TokenBudget, PromptsShareAStepWithDecodes) {
  const TokenDemand small = {.num_pending = 20};
  EXPECT_EQ(Divide(kShared, {small, kDecode, small, small}), (Tokens{20, 1, 20, 0}))
      << "max_num_partial_prefills";
  const TokenDemand large = {.num_pending = 500};
  EXPECT_EQ(Divide(kShared, {small, kDecode, large}), (Tokens{20, 1, 42}))
      << "chunked_prefill_size for all of them";
  EXPECT_EQ(Divide(kShared, {large, kDecode, small}), (Tokens{62, 1, 0}));
}

// Many small prompts beside a decode: their tokens are bounded, not their number.
TEST(TokenBudget, SmallPromptsAreBoundedByTheirTokens) {
  constexpr TokenBudget::Limits kMany = {
      .max_num_batched_tokens = 512, .max_num_partial_prefills = 16, .chunked_prefill_size = 32};
  const TokenDemand small = {.num_pending = 5};
  EXPECT_EQ(Divide(kMany, {kDecode, small, small, small, small, small, small, small, small}),
            (Tokens{1, 5, 5, 5, 5, 5, 5, 1, 0}));
  const TokenDemand large = {.num_pending = 500};
  EXPECT_EQ(Divide(kMany, {kDecode, large, small, small}), (Tokens{1, 31, 0, 0}));
}

// A prompt ends in finite time even when every step is full of decodes.
TEST(TokenBudget, NoPromptStarves) {
  constexpr int kStepTokens = 8;
  std::vector<int> pending(kStepTokens, 1);
  pending[5] = 1000;
  int num_steps = 0;
  for (; pending[5] > 1; ++num_steps) {
    pending[5] -= Divide(kStepTokens, pending)[5];
    ASSERT_LT(num_steps, 1000);
  }
  EXPECT_EQ(num_steps, 999);
}

}  // namespace
}  // namespace lssar
