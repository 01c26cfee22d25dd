#include "runtime/speculator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace lssar {
namespace {

using std::chrono::microseconds;

// Pairs of steps: without drafts, then with them.
void AddPairs(DraftCost* cost, int count, int num_decodes, int num_draft, int plain_us,
              int draft_us) {
  for (int i = 0; i < count; ++i) {
    cost->AddStep(num_decodes, 0, microseconds(plain_us));
    cost->AddStep(num_decodes, num_draft, microseconds(draft_us));
  }
}

TEST(DraftCostTest, IsRelativeToATokenWithoutDrafts) {
  DraftCost cost;
  EXPECT_EQ(cost.Of(1), DraftCost::kPrior);
  AddPairs(&cost, 4, 1, 8, 1000, 1800);  // 100 us a draft token, 1000 us a token
  EXPECT_NEAR(cost.Of(1), 0.1, 1e-9);
  AddPairs(&cost, 4, 16, 8, 1600, 2400);  // 100 us both
  EXPECT_NEAR(cost.Of(16), 1, 1e-9);
  EXPECT_NEAR(cost.Of(1), 0.1, 1e-9) << "another batch size";
}

TEST(DraftCostTest, InterruptedStepsDoNotCount) {
  DraftCost cost;
  for (int i = 0; i < 40; ++i) {
    AddPairs(&cost, 1, 4, 4, i % 5 == 0 ? 20000 : 1000, i % 7 == 0 ? 30000 : 1400);
  }
  EXPECT_NEAR(cost.Of(4), 0.4, 1e-9);
}

TEST(DraftCostTest, FollowsAChange) {
  DraftCost cost;
  AddPairs(&cost, 20, 1, 4, 1000, 1200);
  EXPECT_NEAR(cost.Of(1), 0.05, 1e-9);
  AddPairs(&cost, 20, 1, 4, 1000, 3000);
  EXPECT_NEAR(cost.Of(1), 0.5, 1e-9);
}

TEST(DraftCostTest, OnlyLikeStepsAreCompared) {
  DraftCost cost;
  cost.AddStep(1, 0, microseconds(1000));
  cost.AddStep(2, 4, microseconds(9000));  // another batch
  cost.AddStep(0, 0, microseconds(500));   // a prefill
  cost.AddStep(2, 4, microseconds(9000));
  cost.AddStep(2, 3, microseconds(100));  // both with drafts
  cost.AddStep(2, 0, microseconds(0));    // a clock that stands
  EXPECT_EQ(cost.Of(1), DraftCost::kPrior);
  EXPECT_EQ(cost.Of(2), DraftCost::kPrior);
}

TEST(DraftCostTest, StepsWithoutDraftsComeOftenAtFirstAndSeldomLater) {
  DraftCost cost;
  int num_plain = 0;
  const auto run = [&](int num_steps) {
    num_plain = 0;
    for (int i = 0; i < num_steps; ++i) {
      const bool is_plain = cost.NeedsPlainStep(1);
      num_plain += is_plain;
      cost.AddStep(1, is_plain ? 0 : 4, microseconds(is_plain ? 1000 : 1500));
    }
  };
  run(12);
  EXPECT_GE(num_plain, 3);
  run(640);
  EXPECT_GE(num_plain, 15);
  EXPECT_LE(num_plain, 25);
}

TEST(DraftCostTest, AsksForADraftAfterManyStepsWithoutASample) {
  DraftCost cost;
  const auto run_plain_steps = [&](int num_steps) {
    for (int i = 0; i < num_steps; ++i) cost.AddStep(1, 0, microseconds(1000));
  };
  AddPairs(&cost, 1, 1, 4, 1000, 9000);
  EXPECT_FALSE(cost.NeedsDraft(1));
  run_plain_steps(20);
  EXPECT_TRUE(cost.NeedsDraft(1)) << "one sample may be wrong";
  cost.AddStep(1, 4, microseconds(1100));
  EXPECT_FALSE(cost.NeedsDraft(1));
  AddPairs(&cost, 5, 1, 4, 1000, 9000);
  run_plain_steps(200);
  EXPECT_FALSE(cost.NeedsDraft(1)) << "enough samples";
  run_plain_steps(100);
  EXPECT_TRUE(cost.NeedsDraft(1));
  EXPECT_FALSE(cost.NeedsPlainStep(1));
  cost.AddStep(0, 4, microseconds(9000));  // no measure, because of something else in the step
  EXPECT_TRUE(cost.NeedsPlainStep(1)) << "to compare the draft with";
}

}  // namespace
}  // namespace lssar
