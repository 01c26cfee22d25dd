#include "runtime/token_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace lssar {
namespace {

using Tokens = std::vector<int>;

// Tokens of each sequence.
Tokens Divide(const TokenBudget::Limits& limits, const std::vector<RequiredTokens>& sequences) {
  Tokens num_tokens = {99, 99};
  TokenBudget(limits).Divide(sequences, &num_tokens);
  return num_tokens;
}

Tokens Divide(int max_num_batched_tokens, const std::vector<int>& pending) {
  std::vector<RequiredTokens> sequences;
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

constexpr RequiredTokens kDecode = {.num_pending = 1, .first_position = 500, .is_streaming = true};

TEST(TokenBudget, PromptsUseTheWholeBudgetWhenNoReaderWaits) {
  const RequiredTokens prompt = {.num_pending = 16000, .is_streaming = true};
  EXPECT_EQ(Divide(kShared, {prompt}), (Tokens{512}));
  EXPECT_EQ(Divide(kShared, {prompt, kDecode}), (Tokens{62, 1}));
  const RequiredTokens one_score_token = {.num_pending = 1, .first_position = 500};
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
  const RequiredTokens deepest = {.num_pending = 10, .first_position = 1 << 20};
  EXPECT_EQ(Divide(kShared, {deepest, kDecode}), (Tokens{1, 1}))
      << "the first prompt always gets a token";
}

TEST(TokenBudget, PromptsShareAStepWithDecodes) {
  const RequiredTokens small = {.num_pending = 20};
  EXPECT_EQ(Divide(kShared, {small, kDecode, small, small}), (Tokens{20, 1, 20, 0}))
      << "max_num_partial_prefills";
  const RequiredTokens large = {.num_pending = 500};
  EXPECT_EQ(Divide(kShared, {small, kDecode, large}), (Tokens{20, 1, 42}))
      << "chunked_prefill_size for all of them";
  EXPECT_EQ(Divide(kShared, {large, kDecode, small}), (Tokens{62, 1, 0}));
}

// Many small prompts beside a decode: their tokens are bounded, not their number.
TEST(TokenBudget, SmallPromptsAreBoundedByTheirTokens) {
  constexpr TokenBudget::Limits kMany = {
      .max_num_batched_tokens = 512, .max_num_partial_prefills = 16, .chunked_prefill_size = 32};
  const RequiredTokens small = {.num_pending = 5};
  EXPECT_EQ(Divide(kMany, {kDecode, small, small, small, small, small, small, small, small}),
            (Tokens{1, 5, 5, 5, 5, 5, 5, 1, 0}));
  const RequiredTokens large = {.num_pending = 500};
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

// Tokens of each sequence, of several tenants.
Tokens Share(const TokenBudget::Limits& limits, const std::vector<RequiredTokens>& sequences) {
  Tokens num_tokens = {99, 99};
  TokenBudget(limits).Share(sequences, &num_tokens);
  return num_tokens;
}

TEST(TokenBudget, TenantsShareAStep) {
  const RequiredTokens first = {.num_pending = 500, .rank = 0},
                       second = {.num_pending = 500, .rank = 1};
  EXPECT_EQ(Share(kShared, {}), Tokens{});
  EXPECT_EQ(Share(kShared, {first, second, second}), (Tokens{120, 120, 2}))
      << "half of 4 x 64 each";
  EXPECT_EQ(Share(kShared, {second, {.num_pending = 10, .rank = 0}}), (Tokens{222, 10}))
      << "what the other leaves";
  EXPECT_EQ(Share(kShared, {{.num_pending = 500, .first_position = 1 << 20, .rank = 1}, first}),
            (Tokens{1, 120}))
      << "the first in order advances, whatever it costs";
  EXPECT_EQ(Share(kShared, {second, {.num_pending = 1, .is_streaming = true, .rank = 1}, first}),
            (Tokens{62, 1, 176}))
      << "chunked_prefill_size for the prompts beside a reader of the same tenant";
}

TEST(TokenBudget, CreditComesBeforeEqualParts) {
  constexpr int64_t kToken = kKeysPerTokenCost;
  const auto prompt = [](int rank, int64_t credit) {
    return RequiredTokens{.num_pending = 500, .rank = rank, .credit = credit * kToken};
  };
  EXPECT_EQ(Share(kShared, {prompt(0, 30), prompt(1, 30)}), (Tokens{121, 120}))
      << "equal credits are none; the first gets what is left of both parts";
  EXPECT_EQ(Share(kShared, {prompt(0, 0), prompt(1, 400)}), (Tokens{1, 230}))
      << "all of the step, but that every tenant advances";
  const Tokens some = Share(kShared, {prompt(0, 0), prompt(1, 100)});  // 78 and 178
  EXPECT_NEAR(some[0], 75, 1);
  EXPECT_NEAR(some[1], 164, 1);
  const Tokens three = Share(kShared, {prompt(0, 0), prompt(1, 100), prompt(2, 300)});
  EXPECT_EQ(three[0], 1);
  EXPECT_NEAR(three[1], 27, 1);  // 100 - 72, and 300 - 72
  EXPECT_NEAR(three[2], 207, 1);
  const RequiredTokens decode = {.num_pending = 1, .rank = 1, .credit = 400 * kToken};
  EXPECT_EQ(Share(kShared, {prompt(0, 0), decode}), (Tokens{229, 1})) << "what the other leaves";
}

TEST(TokenBudget, DecodesOfATenantTakeTurns) {
  std::vector<RequiredTokens> sequences(40,
                                        {.num_pending = 1, .first_position = 15 * 1024, .rank = 1});
  sequences.push_back({.num_pending = 500, .rank = 0});
  std::vector<int> num_steps(41, 0);
  for (int step = 1; step <= 40; ++step) {
    const Tokens tokens = Share(kShared, sequences);
    EXPECT_GE(tokens[40], 100) << "the other tenant's prompt";
    for (size_t i = 0; i < 40; ++i) {
      if (tokens[i] > 0) sequences[i].last_step = step;
      num_steps[i] += tokens[i];
    }
  }
  EXPECT_EQ(num_steps[0], 40) << "the first in order";
  for (size_t i = 1; i < 40; ++i) EXPECT_GE(num_steps[i], 6) << i;
}

TEST(TokenBudget, SharesKeepTheRulesForRandomSequences) {
  std::mt19937 random(12);
  for (int round = 0; round < 20000; ++round) {
    const TokenBudget::Limits limits = {.max_num_batched_tokens = 1 + int(random() % 40),
                                        .max_num_partial_prefills = 1 + int(random() % 4),
                                        .chunked_prefill_size = 1 + int(random() % 12)};
    std::vector<RequiredTokens> sequences(1 + random() % size_t(limits.max_num_batched_tokens));
    for (RequiredTokens& sequence : sequences) {
      sequence = {.num_pending = random() % 2 == 0 ? 1 : 1 + int(random() % 60),
                  .first_position = random() % 3 == 0 ? int(random() % 20000) : 0,
                  .is_streaming = random() % 2 == 0,
                  .rank = int(random() % 4),
                  .last_step = int64_t(random() % 5)};
    }
    std::array<int64_t, 4> credits = {};
    for (int64_t& credit : credits) credit = int64_t(random() % 3) * int64_t(random() % 50'000);
    for (RequiredTokens& sequence : sequences) sequence.credit = credits[size_t(sequence.rank)];
    const Tokens tokens = Share(limits, sequences);
    int num_tokens = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      ASSERT_GE(tokens[i], 0);
      ASSERT_LE(tokens[i], sequences[i].num_pending);
      num_tokens += tokens[i];
    }
    ASSERT_LE(num_tokens, limits.max_num_batched_tokens);
    ASSERT_GE(tokens[0], 1) << "the first advances";
    std::array<bool, 4> is_there = {}, advances = {};
    for (size_t i = 0; i < sequences.size(); ++i) {
      is_there[size_t(sequences[i].rank)] = true;
      advances[size_t(sequences[i].rank)] |= tokens[i] > 0;
    }
    if (num_tokens < limits.max_num_batched_tokens) {
      ASSERT_EQ(advances, is_there);
    }
  }
}

}  // namespace
}  // namespace lssar
