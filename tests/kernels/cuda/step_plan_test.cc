// How a step's rows become work for the device.
#include "kernels/cuda/step_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace lssar {
namespace {

constexpr CudaPlanSetup kH200{
    .num_heads = 12, .page_tokens = 64, .num_multiprocessors = 132, .has_clusters = true};

struct Step {
  void Add(int num_rows, int first_position) {
    const int num_pages = (first_position + num_rows + 63) / 64;
    pages.emplace_back();
    for (int i = 0; i < num_pages; ++i) pages.back().push_back(next_page++);
    sequences.push_back(
        {.first_row = rows, .num_rows = num_rows, .first_position = first_position, .pages = {}});
    rows += num_rows;
  }
  CudaStepPlan Plan(const CudaPlanSetup& setup) {
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].pages = pages[i];
    CudaStepPlan plan;
    PlanCudaStep({.num_rows = rows, .sequences = sequences}, setup, plan);
    return plan;
  }

  std::vector<SequenceRows> sequences;
  std::vector<std::vector<int32_t>> pages;
  int rows = 0;
  int32_t next_page = 3;
};

TEST(StepPlanTest, EveryRowOnceAndItsPages) {
  Step step;
  step.Add(1, 16000);
  step.Add(200, 100);
  step.Add(4, 60);
  step.Add(1, 0);
  step.Add(5, 0);
  const CudaStepPlan plan = step.Plan(kH200);

  ASSERT_EQ(plan.rows.size(), 211u);
  std::multiset<int> rows;
  for (const CudaDecodeRow& row : plan.decode_rows) {
    rows.insert(row.row);
    EXPECT_EQ(row.num_keys, plan.rows[size_t(row.row)].position + 1);
    EXPECT_EQ(row.first_page, plan.rows[size_t(row.row)].first_page);
  }
  EXPECT_EQ(plan.decode_rows.size(), 6u);
  for (const CudaTile& tile : plan.tiles) {
    EXPECT_LE(tile.num_rows, kTileRows);
    for (int r = 0; r < tile.num_rows; ++r) {
      rows.insert(tile.first_row + r);
      EXPECT_EQ(tile.first_position + r, plan.rows[size_t(tile.first_row + r)].position);
    }
  }
  EXPECT_EQ(plan.tiles.size(), 4u + 1u);
  for (int row = 0; row < 211; ++row) EXPECT_EQ(rows.count(row), 1u) << row;

  for (size_t s = 0; s < step.sequences.size(); ++s) {
    const CudaRow& row = plan.rows[size_t(step.sequences[s].first_row)];
    EXPECT_TRUE(std::equal(step.pages[s].begin(), step.pages[s].end(),
                           plan.pages.begin() + row.first_page));
  }
}

TEST(StepPlanTest, LongWorkFirst) {
  Step step;
  step.Add(70, 0);
  step.Add(70, 5000);
  for (int position : {10, 9000, 300}) step.Add(1, position);
  const CudaStepPlan plan = step.Plan(kH200);
  EXPECT_TRUE(std::is_sorted(plan.tiles.begin(), plan.tiles.end(),
                             [](const CudaTile& a, const CudaTile& b) {
                               return a.first_position + a.num_rows > b.first_position + b.num_rows;
                             }));
  for (const CudaDecodeBatch& batch : plan.batches) {
    for (int i = 1; i < batch.count; ++i) {
      EXPECT_GE(plan.decode_rows[size_t(batch.first + i - 1)].num_keys,
                plan.decode_rows[size_t(batch.first + i)].num_keys);
    }
  }
}

TEST(StepPlanTest, ClustersFillTheDevice) {
  // 16K keys are 64 splits. One row of 12 heads: all the blocks that a cluster may have.
  EXPECT_EQ(ClusterBlocksFor(64, 12, 132), 8);
  // 64 rows fill the device with as few as hold a row's scores.
  EXPECT_EQ(ClusterBlocksFor(64, 64 * 12, 132), 2);
  // A short row has a warp for each split.
  EXPECT_EQ(ClusterBlocksFor(8, 12, 132), 1);
  EXPECT_EQ(ClusterBlocksFor(9, 12, 132), 2);
  EXPECT_EQ(ClusterBlocksFor(8 * kSplitsOfBlock, 10000, 132), 8);
  EXPECT_EQ(ClusterBlocksFor(8 * kSplitsOfBlock + 1, 12, 132), 0);
}

TEST(StepPlanTest, BatchesCoverTheDecodeRows) {
  Step step;
  for (int position : {0, 100, 5000, 16383, 100000, 16000, 3}) step.Add(1, position);
  const CudaStepPlan plan = step.Plan(kH200);
  int next = 0;
  for (const CudaDecodeBatch& batch : plan.batches) {
    EXPECT_EQ(batch.first, next);
    next += batch.count;
    for (int i = 0; i < batch.count; ++i) {
      const int splits = NumCudaSplits(plan.decode_rows[size_t(batch.first + i)].num_keys);
      EXPECT_LE(splits, batch.max_splits);
      if (batch.cluster_blocks == 0) continue;
      EXPECT_LE(splits, batch.cluster_blocks * kSplitsOfBlock);
    }
  }
  EXPECT_EQ(next, 7);
  // Only the row of 100001 keys is too long for a cluster.
  EXPECT_EQ(plan.num_splits, 12u * NumCudaSplits(100001));
}

TEST(StepPlanTest, ScratchOfRowsDoesNotOverlap) {
  CudaPlanSetup setup = kH200;
  setup.has_clusters = false;
  Step step;
  for (int position : {700, 0, 255, 256}) step.Add(1, position);
  const CudaStepPlan plan = step.Plan(setup);
  ASSERT_EQ(plan.batches.size(), 1u);
  EXPECT_EQ(plan.batches[0].cluster_blocks, 0);
  size_t splits = 0;
  for (const CudaDecodeRow& row : plan.decode_rows) {
    EXPECT_EQ(row.split_idx, splits);
    EXPECT_EQ(row.scores_idx, splits * kCudaSplitKeys);
    splits += 12u * size_t(NumCudaSplits(row.num_keys));
  }
  EXPECT_EQ(plan.num_splits, splits);
  EXPECT_EQ(plan.num_scores, splits * kCudaSplitKeys);
}

}  // namespace
}  // namespace lssar
