#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace lssar {
namespace {

// (sequence_idx, num_rows) of each entry.
std::vector<std::pair<int, int>> PlanOf(int max_num_batched_tokens,
                                        const std::vector<int>& pending) {
  std::vector<SequenceView> views;
  for (const int num_pending : pending) views.push_back({.num_pending = num_pending});
  StepPlan plan = {{.sequence_idx = 99, .num_rows = 99}};
  Scheduler({.max_num_batched_tokens = max_num_batched_tokens}).Plan(views, &plan);
  std::vector<std::pair<int, int>> result;
  for (const PlannedRows& rows : plan) result.emplace_back(rows.sequence_idx, rows.num_rows);
  return result;
}

using Rows = std::vector<std::pair<int, int>>;

TEST(Scheduler, NothingRunsNothingIsPlanned) { EXPECT_EQ(PlanOf(8, {}), Rows{}); }

TEST(Scheduler, DecodeRowsComeFirstAndPromptsTakeTheRest) {
  EXPECT_EQ(PlanOf(8, {100, 1, 1, 100}), (Rows{{0, 6}, {1, 1}, {2, 1}}));
}

TEST(Scheduler, PromptsAreServedInOrderOfArrival) {
  EXPECT_EQ(PlanOf(16, {5, 7, 9}), (Rows{{0, 5}, {1, 7}, {2, 4}}));
}

TEST(Scheduler, TheOldestPromptGoesOnBesideAsManyDecodesAsCanRun) {
  EXPECT_EQ(PlanOf(4, {1, 1, 50, 1}), (Rows{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
}

TEST(Scheduler, KeepsEveryRuleOverRandomWorlds) {
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    const int max_num_batched_tokens = 1 + int(random() % 40);
    std::vector<int> pending(random() % size_t(max_num_batched_tokens + 1));
    for (int& p : pending) p = random() % 2 == 0 ? 1 : 1 + int(random() % 60);
    const Rows rows = PlanOf(max_num_batched_tokens, pending);
    ASSERT_EQ(rows, PlanOf(max_num_batched_tokens, pending)) << "pure";

    int num_rows = 0;
    std::vector<int> planned(pending.size(), 0);
    int last_idx = -1;
    for (const auto& [idx, count] : rows) {
      ASSERT_GT(idx, last_idx);
      last_idx = idx;
      ASSERT_GE(count, 1);
      ASSERT_LE(count, pending[size_t(idx)]);
      planned[size_t(idx)] = count;
      num_rows += count;
    }
    ASSERT_LE(num_rows, max_num_batched_tokens);
    int num_wanted = 0;
    for (const int p : pending) num_wanted += p;
    ASSERT_EQ(num_rows, std::min(num_wanted, max_num_batched_tokens)) << "the budget is used";
    bool is_older_served = true;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (pending[i] == 1) {
        ASSERT_EQ(planned[i], 1) << "every decode row runs";
      } else {
        ASSERT_TRUE(is_older_served || planned[i] == 0) << "a younger prompt passed an older one";
        is_older_served = is_older_served && planned[i] == pending[i];
      }
    }
  }
}

constexpr Scheduler::Limits kShared = {
    .max_num_batched_tokens = 512, .max_num_partial_prefills = 2, .chunked_prefill_size = 64};

Rows PlanOf(const Scheduler::Limits& limits, const std::vector<SequenceView>& views) {
  StepPlan plan;
  Scheduler(limits).Plan(views, &plan);
  Rows result;
  for (const PlannedRows& rows : plan) result.emplace_back(rows.sequence_idx, rows.num_rows);
  return result;
}

constexpr SequenceView kDecode = {.num_pending = 1, .first_row = 500, .streams = true};

TEST(Scheduler, PromptsHurryOnlyWhileNobodyWaitsForAToken) {
  const SequenceView prompt = {.num_pending = 16000, .streams = true};
  EXPECT_EQ(PlanOf(kShared, {prompt}), (Rows{{0, 512}}));
  EXPECT_EQ(PlanOf(kShared, {prompt, kDecode}), (Rows{{0, 62}, {1, 1}}));
  const SequenceView one_score_row = {.num_pending = 1, .first_row = 500};
  EXPECT_EQ(PlanOf(kShared, {prompt, one_score_row}), (Rows{{0, 511}, {1, 1}}))
      << "no reader waits for it";
}

TEST(Scheduler, RowsDeepInAPromptCountForMore) {
  int num_rows_before = 64;
  for (const int first_row : {0, 2048, 8192, 16384}) {
    const int num_rows =
        PlanOf(kShared, {{.num_pending = 10000, .first_row = first_row}, kDecode})[0].second;
    EXPECT_LT(num_rows, num_rows_before);
    EXPECT_NEAR(num_rows, 64.0 / (1 + double(first_row) / kKeysPerRowCost), 2);
    num_rows_before = num_rows;
  }
  const SequenceView deepest = {.num_pending = 10, .first_row = 1 << 20};
  EXPECT_EQ(PlanOf(kShared, {deepest, kDecode}), (Rows{{0, 1}, {1, 1}}))
      << "the most senior prompt always has a row";
}

TEST(Scheduler, PromptsShareAStepWithReaders) {
  const SequenceView small = {.num_pending = 20};
  EXPECT_EQ(PlanOf(kShared, {small, kDecode, small, small}), (Rows{{0, 20}, {1, 1}, {2, 20}}))
      << "max_num_partial_prefills";
  const SequenceView large = {.num_pending = 500};
  EXPECT_EQ(PlanOf(kShared, {small, kDecode, large}), (Rows{{0, 20}, {1, 1}, {2, 42}}))
      << "chunked_prefill_size for all of them";
  EXPECT_EQ(PlanOf(kShared, {large, kDecode, small}), (Rows{{0, 62}, {1, 1}}));
}

// Many questions of a few tokens beside readers: their tokens count, not how many they are.
TEST(Scheduler, SmallPromptsAreBoundedByTheirTokens) {
  constexpr Scheduler::Limits kMany = {
      .max_num_batched_tokens = 512, .max_num_partial_prefills = 16, .chunked_prefill_size = 32};
  const SequenceView small = {.num_pending = 5};
  EXPECT_EQ(PlanOf(kMany, {kDecode, small, small, small, small, small, small, small, small}),
            (Rows{{0, 1}, {1, 5}, {2, 5}, {3, 5}, {4, 5}, {5, 5}, {6, 5}, {7, 1}}));
  const SequenceView large = {.num_pending = 500};
  EXPECT_EQ(PlanOf(kMany, {kDecode, large, small, small}), (Rows{{0, 1}, {1, 31}}));
}

// Even when every step is full of decode rows, a prompt gets through in finite time.
TEST(Scheduler, NoPromptStarves) {
  constexpr int kStepTokens = 8;
  std::vector<int> pending(kStepTokens, 1);
  pending[5] = 1000;
  int num_steps = 0;
  for (; pending[5] > 1; ++num_steps) {
    for (const auto& [idx, count] : PlanOf(kStepTokens, pending)) {
      if (idx == 5) pending[5] -= count;
    }
    ASSERT_LT(num_steps, 1000);
  }
  EXPECT_EQ(num_steps, 999);
}

}  // namespace
}  // namespace lssar
