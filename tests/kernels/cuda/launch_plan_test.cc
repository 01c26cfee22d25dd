// How a step's rows are divided into launches.
#include "kernels/cuda/launch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace lssar {
namespace {

constexpr CudaPlanSetup kH200{
    .num_heads = 12, .page_size = 64, .num_multiprocessors = 132, .has_clusters = true};

struct Step {
  void Add(int num_rows, int first_position) {
    const int num_pages = (first_position + num_rows + 63) / 64;
    pages.emplace_back();
    for (int i = 0; i < num_pages; ++i) pages.back().push_back(next_page++);
    sequences.push_back(
        {.first_row = rows, .num_rows = num_rows, .first_position = first_position, .pages = {}});
    rows += num_rows;
  }
  CudaLaunchPlan Plan(const CudaPlanSetup& setup) {
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].pages = pages[i];
    CudaLaunchPlan plan;
    PlanCudaStep({.num_rows = rows, .sequences = sequences}, setup, plan);
    return plan;
  }

  std::optional<DecodeBucket> Bucket(int max_rows, bool has_clusters = true) const {
    return DecodeBucketFor({.num_rows = rows, .sequences = sequences}, max_rows, has_clusters);
  }

  std::vector<SequenceSlice> sequences;
  std::vector<std::vector<int32_t>> pages;
  int rows = 0;
  int32_t next_page = 3;
};

TEST(LaunchPlanTest, EveryRowIsPlannedOnceWithItsPages) {
  Step step;
  step.Add(1, 16000);
  step.Add(200, 100);
  step.Add(4, 60);
  step.Add(1, 0);
  step.Add(5, 0);
  const CudaLaunchPlan plan = step.Plan(kH200);

  ASSERT_EQ(plan.rows.size(), 211u);
  std::multiset<int> rows;
  for (const CudaDecodeRow& row : plan.decode_rows) {
    rows.insert(row.row);
    EXPECT_EQ(row.num_keys, plan.rows[size_t(row.row)].position + 1);
    EXPECT_EQ(row.first_page, plan.rows[size_t(row.row)].first_page);
  }
  EXPECT_EQ(plan.decode_rows.size(), 6u);
  for (const CudaTile& tile : plan.tiles) {
    EXPECT_LE(tile.num_rows, plan.tile_rows);
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

TEST(LaunchPlanTest, TilesAreLargeWhereTheyFillTheDevice) {
  for (const int num_rows : {2700, 3000}) {  // 21 or 23 tiles of 128 rows: 252 or 276 blocks
    Step step;
    step.Add(num_rows, 5);
    CudaPlanSetup setup = kH200;
    setup.num_heads = 12;
    const CudaLaunchPlan plan = step.Plan(setup);
    const int tile_rows = num_rows == 3000 ? kWideTileRows : kTileRows;
    EXPECT_EQ(plan.tile_rows, tile_rows);
    EXPECT_EQ(plan.tiles.size(), size_t(num_rows + tile_rows - 1) / size_t(tile_rows));
    for (const CudaTile& tile : plan.tiles) EXPECT_LE(tile.num_rows, tile_rows);
  }
}

TEST(LaunchPlanTest, LongWorkFirst) {
  Step step;
  step.Add(70, 0);
  step.Add(70, 5000);
  for (int position : {10, 9000, 300}) step.Add(1, position);
  const CudaLaunchPlan plan = step.Plan(kH200);
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

TEST(LaunchPlanTest, ClustersFillTheDevice) {
  // 16K keys are 64 splits. One row of 12 heads: the largest cluster.
  EXPECT_EQ(ClusterBlocksFor(64, 12, 132), 8);
  // 64 rows fill the device with the smallest cluster that holds a row's scores.
  EXPECT_EQ(ClusterBlocksFor(64, 64 * 12, 132), 2);
  // A short row: one warp a split.
  EXPECT_EQ(ClusterBlocksFor(8, 12, 132), 1);
  EXPECT_EQ(ClusterBlocksFor(9, 12, 132), 2);
  EXPECT_EQ(ClusterBlocksFor(8 * kSplitsOfBlock, 10000, 132), 8);
  EXPECT_EQ(ClusterBlocksFor(8 * kSplitsOfBlock + 1, 12, 132), 0);
}

// The list has the bucket of every step, and no other.
TEST(LaunchPlanTest, BucketsAreThoseOfAllSteps) {
  constexpr int kMaxRows = 37, kMaxKeys = 5000;
  for (const bool has_clusters : {true, false}) {
    for (const int capacity : {20, 512}) {
      std::set<std::pair<int, int>> wanted, listed;
      for (int num_rows = 1; num_rows <= kMaxRows; ++num_rows) {
        for (int num_keys = 256; num_keys < kMaxKeys + 256; num_keys += 256) {
          Step step;
          for (int row = 0; row < num_rows; ++row) {
            step.Add(1, row == 0 ? std::min(num_keys, kMaxKeys) - 1 : 0);
          }
          const auto bucket = step.Bucket(capacity, has_clusters);
          if (bucket) wanted.emplace(bucket->num_rows, bucket->max_splits);
        }
      }
      for (const DecodeBucket& bucket : DecodeBuckets(kMaxRows, kMaxKeys, capacity, has_clusters)) {
        EXPECT_TRUE(listed.emplace(bucket.num_rows, bucket.max_splits).second);
      }
      EXPECT_EQ(listed, wanted) << capacity;
    }
  }
  EXPECT_EQ(DecodeBuckets(64, 1 << 20, 512, true).size(), 99u);
}

TEST(LaunchPlanTest, BatchesCoverTheDecodeRows) {
  Step step;
  for (int position : {0, 100, 5000, 16383, 100000, 16000, 3}) step.Add(1, position);
  const CudaLaunchPlan plan = step.Plan(kH200);
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
  EXPECT_EQ(plan.num_splits, size_t(NumCudaSplits(100001)));
}

TEST(LaunchPlanTest, ScratchOfRowsDoesNotOverlap) {
  CudaPlanSetup setup = kH200;
  setup.has_clusters = false;
  Step step;
  for (int position : {700, 0, 255, 256}) step.Add(1, position);
  const CudaLaunchPlan plan = step.Plan(setup);
  ASSERT_EQ(plan.batches.size(), 1u);
  EXPECT_EQ(plan.batches[0].cluster_blocks, 0);
  size_t splits = 0;
  for (const CudaDecodeRow& row : plan.decode_rows) {
    EXPECT_EQ(row.split_idx, splits);
    splits += size_t(NumCudaSplits(row.num_keys));
  }
  EXPECT_EQ(plan.num_splits, splits);
}

TEST(DecodeBucketTest, RowsAndSplitsAreRoundedUp) {
  const auto bucket = [](int num_rows, int position, int max_rows = 512) {
    Step step;
    for (int i = 0; i + 1 < num_rows; ++i) step.Add(1, 3);
    step.Add(1, position);
    return step.Bucket(max_rows);
  };
  const std::pair<int, int> rounded[] = {{1, 1},   {2, 2},   {3, 4},   {5, 8},   {9, 16},
                                         {17, 24}, {25, 32}, {41, 48}, {63, 64}, {64, 64}};
  for (const auto& [num_rows, want] : rounded) {
    EXPECT_EQ(bucket(num_rows, 5), (DecodeBucket{want, 1})) << num_rows;
  }
  EXPECT_EQ(bucket(65, 5), std::nullopt);
  // A row at position 255 has 256 keys: one split.
  const std::pair<int, int> of_position[] = {{0, 1},       {255, 1},    {256, 2},  {511, 2},
                                             {512, 4},     {1023, 4},   {1024, 8}, {16383, 64},
                                             {16384, 128}, {65535, 256}};
  for (const auto& [position, want] : of_position) {
    EXPECT_EQ(bucket(1, position), (DecodeBucket{1, want})) << position;
  }
  EXPECT_EQ(bucket(1, 65536), std::nullopt);
  // The model's arrays have fewer rows than the bucket.
  EXPECT_EQ(bucket(3, 5, 3), (DecodeBucket{3, 1}));
  EXPECT_EQ(bucket(5, 5, 6), (DecodeBucket{6, 1}));
  EXPECT_EQ(bucket(5, 5, 4), std::nullopt);
}

TEST(DecodeBucketTest, PromptsHaveNoBucket) {
  Step step;
  step.Add(1, 100);
  step.Add(kMaxDecodeRows, 7);
  EXPECT_EQ(step.Bucket(512), (DecodeBucket{8, 1}));
  step.Add(kMaxDecodeRows + 1, 0);
  EXPECT_EQ(step.Bucket(512), std::nullopt);
}

TEST(DecodeBucketTest, WithoutClustersScratchIsBounded) {
  Step step;
  for (int i = 0; i < 64; ++i) step.Add(1, 16383);
  EXPECT_EQ(step.Bucket(512, false), (DecodeBucket{64, 64}));
  step.sequences.back().first_position = 16384;
  EXPECT_EQ(step.Bucket(512, false), std::nullopt);
  EXPECT_EQ(step.Bucket(512, true), (DecodeBucket{64, 128}));
}

// One batch: the step's rows, then padding rows up to the bucket's number.
TEST(DecodeBucketTest, ThePlanHasTheBucketsShape) {
  for (const bool has_clusters : {true, false}) {
    CudaPlanSetup setup = kH200;
    setup.has_clusters = has_clusters;
    Step step;
    for (int position : {10, 9000, 300, 9000, 0}) step.Add(1, position);
    const CudaLaunchPlan eager = step.Plan(setup);
    const DecodeBucket bucket = *step.Bucket(512, has_clusters);
    ASSERT_EQ(bucket, (DecodeBucket{8, 64}));
    CudaLaunchPlan plan;
    PlanDecodeStep({.num_rows = step.rows, .sequences = step.sequences}, setup, bucket, plan);

    EXPECT_TRUE(plan.tiles.empty());
    EXPECT_EQ(plan.pages, eager.pages);
    ASSERT_EQ(plan.batches.size(), 1u);
    EXPECT_EQ(plan.batches[0].first, 0);
    EXPECT_EQ(plan.batches[0].count, 8);
    EXPECT_EQ(plan.batches[0].max_splits, 64);
    EXPECT_EQ(plan.batches[0].cluster_blocks, has_clusters ? ClusterBlocksFor(64, 8 * 12, 132) : 0);
    ASSERT_EQ(plan.rows.size(), 8u);
    ASSERT_EQ(plan.decode_rows.size(), 8u);
    const int order[] = {1, 3, 2, 0, 4};  // most keys first
    for (size_t i = 0; i < 8; ++i) {
      const CudaDecodeRow& row = plan.decode_rows[i];
      EXPECT_EQ(plan.rows[i].position, i < 5 ? eager.rows[i].position : -1);
      EXPECT_EQ(row.num_keys, i < 5 ? plan.rows[size_t(order[i])].position + 1 : 0);
      EXPECT_EQ(row.row, i < 5 ? order[i] : 0);
      EXPECT_EQ(row.split_idx, has_clusters ? 0 : i * 64);
    }
    EXPECT_EQ(plan.num_splits, has_clusters ? 0u : 8u * 64);
  }
}

}  // namespace
}  // namespace lssar
