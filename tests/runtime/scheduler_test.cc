#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace lssar {
namespace {

// (sequence_idx, num_rows) of each entry.
std::vector<std::pair<int, int>> PlanOf(int step_tokens, const std::vector<int>& pending) {
  std::vector<SequenceView> views;
  for (const int num_pending : pending) views.push_back({.num_pending = num_pending});
  StepPlan plan = {{.sequence_idx = 99, .num_rows = 99}};
  Scheduler(step_tokens).Plan(views, &plan);
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
    const int step_tokens = 1 + int(random() % 40);
    std::vector<int> pending(random() % size_t(step_tokens + 1));
    for (int& p : pending) p = random() % 2 == 0 ? 1 : 1 + int(random() % 60);
    const Rows rows = PlanOf(step_tokens, pending);
    ASSERT_EQ(rows, PlanOf(step_tokens, pending)) << "pure";

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
    ASSERT_LE(num_rows, step_tokens);
    int num_wanted = 0;
    for (const int p : pending) num_wanted += p;
    ASSERT_EQ(num_rows, std::min(num_wanted, step_tokens)) << "the budget is used";
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
