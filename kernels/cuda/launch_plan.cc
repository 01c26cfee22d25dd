#include "kernels/cuda/launch_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lssar {
namespace {

static_assert(kMaxBucketSplits == kMostClusterBlocks * kSplitsOfBlock);

// Rows times splits of a bucket without clusters, at most: 50 MiB of scores at 12 heads.
constexpr int kMaxScratchSplits = 4096;

void AddTiles(const SequenceSlice& sequence, int sequence_idx, int first_page,
              CudaLaunchPlan& plan) {
  for (int end = sequence.num_rows; end > 0;) {
    const int num_rows = std::min(end, plan.tile_rows);
    end -= num_rows;
    plan.tiles.push_back({.first_row = sequence.first_row + end,
                          .num_rows = num_rows,
                          .first_position = sequence.first_position + end,
                          .first_page = first_page,
                          .sequence = sequence_idx});
  }
}

// Sorts the decode rows by cluster size and assigns scratch to the rows of split decode.
void MakeBatches(const CudaPlanSetup& setup, CudaLaunchPlan& plan) {
  const int64_t num_vectors = int64_t(plan.decode_rows.size()) * setup.num_heads;
  const auto cluster_of = [&](const CudaDecodeRow& row) {
    if (!setup.has_clusters) return 0;
    return ClusterBlocksFor(NumCudaSplits(row.num_keys), num_vectors, setup.num_multiprocessors);
  };
  // Long rows first, so that the last blocks of a launch are short.
  std::stable_sort(plan.decode_rows.begin(), plan.decode_rows.end(),
                   [&](const CudaDecodeRow& a, const CudaDecodeRow& b) {
                     const int cluster_a = cluster_of(a), cluster_b = cluster_of(b);
                     return cluster_a != cluster_b ? cluster_a > cluster_b
                                                   : a.num_keys > b.num_keys;
                   });
  for (size_t i = 0; i < plan.decode_rows.size(); ++i) {
    CudaDecodeRow& row = plan.decode_rows[i];
    const int cluster_blocks = cluster_of(row);
    const int num_splits = NumCudaSplits(row.num_keys);
    if (plan.batches.empty() || plan.batches.back().cluster_blocks != cluster_blocks) {
      plan.batches.push_back({.first = int(i), .cluster_blocks = cluster_blocks});
    }
    CudaDecodeBatch& batch = plan.batches.back();
    ++batch.count;
    batch.max_splits = std::max(batch.max_splits, num_splits);
    if (cluster_blocks > 0) continue;
    row.split_idx = plan.num_splits;
    plan.num_splits += size_t(num_splits);
  }
}

}  // namespace

int ClusterBlocksFor(int num_splits, int64_t num_vectors, int num_multiprocessors) {
  for (int blocks = 1; blocks <= kMostClusterBlocks; blocks *= 2) {
    if (num_splits > blocks * kSplitsOfBlock) continue;
    const bool fills_device = num_vectors * blocks >= 2 * int64_t{num_multiprocessors};
    const bool has_warp_each = num_splits <= blocks * kDecodeWarps;
    if (fills_device || has_warp_each || blocks == kMostClusterBlocks) return blocks;
  }
  return 0;
}

namespace {

void Clear(CudaLaunchPlan& plan) {
  plan.rows.clear();
  plan.pages.clear();
  plan.decode_rows.clear();
  plan.batches.clear();
  plan.tiles.clear();
  plan.num_splits = 0;
}

// Rows of a prefill tile: as many as leave two tiles for each multiprocessor.
int TileRowsFor(const RaggedBatch& rows, const CudaPlanSetup& setup) {
  int64_t num_tiles = 0;
  for (const SequenceSlice& sequence : rows.sequences) {
    if (sequence.num_rows > kMaxDecodeRows) num_tiles += sequence.num_rows / kWideTileRows;
  }
  const bool fills_device = num_tiles * setup.num_heads >= 2 * int64_t{setup.num_multiprocessors};
  return fills_device ? kWideTileRows : kTileRows;
}

// Adds the sequence's rows and pages, and its decode rows or its tiles.
void AddSequence(const RaggedBatch& rows, size_t s, const CudaPlanSetup& setup,
                 CudaLaunchPlan& plan) {
  const SequenceSlice& sequence = rows.sequences[s];
  const int first_page = int(plan.pages.size());
  const int num_keys = sequence.first_position + sequence.num_rows;
  const int num_pages = (num_keys + setup.page_size - 1) / setup.page_size;
  plan.pages.insert(plan.pages.end(), sequence.pages.begin(), sequence.pages.begin() + num_pages);
  for (int r = 0; r < sequence.num_rows; ++r) {
    plan.rows.push_back({.position = sequence.first_position + r, .first_page = first_page});
    if (sequence.num_rows > kMaxDecodeRows) continue;
    plan.decode_rows.push_back({.row = sequence.first_row + r,
                                .num_keys = sequence.first_position + r + 1,
                                .first_page = first_page,
                                .sequence = int32_t(s),
                                .log_keys = std::log(double(sequence.first_position + r + 1))});
  }
  if (sequence.num_rows > kMaxDecodeRows) AddTiles(sequence, int(s), first_page, plan);
}

}  // namespace

void PlanCudaStep(const RaggedBatch& rows, const CudaPlanSetup& setup, CudaLaunchPlan& plan) {
  Clear(plan);
  plan.tile_rows = TileRowsFor(rows, setup);
  for (size_t s = 0; s < rows.sequences.size(); ++s) AddSequence(rows, s, setup, plan);
  std::stable_sort(plan.tiles.begin(), plan.tiles.end(), [](const CudaTile& a, const CudaTile& b) {
    return a.first_position + a.num_rows > b.first_position + b.num_rows;
  });
  MakeBatches(setup, plan);
}

namespace {

// Row counts of buckets: 1, 2, 4, 8, 16, 24, ...
int NextRows(int num_rows) { return num_rows + std::min(num_rows, 8); }

bool IsBucket(const DecodeBucket& bucket, bool has_clusters) {
  return bucket.num_rows <= kMaxBucketRows && bucket.max_splits <= kMaxBucketSplits &&
         (has_clusters || int64_t{bucket.num_rows} * bucket.max_splits <= kMaxScratchSplits);
}

}  // namespace

std::optional<DecodeBucket> DecodeBucketFor(const RaggedBatch& rows, int max_rows,
                                            bool has_clusters) {
  int max_keys = 0;
  for (const SequenceSlice& sequence : rows.sequences) {
    if (sequence.num_rows > kMaxDecodeRows) return std::nullopt;
    max_keys = std::max(max_keys, sequence.first_position + sequence.num_rows);
  }
  DecodeBucket bucket{.num_rows = 1, .max_splits = 1};
  while (bucket.num_rows < rows.num_rows) bucket.num_rows = NextRows(bucket.num_rows);
  while (bucket.max_splits < NumCudaSplits(max_keys)) bucket.max_splits *= 2;
  bucket.num_rows = std::min(bucket.num_rows, max_rows);
  if (!IsBucket(bucket, has_clusters) || bucket.num_rows < rows.num_rows) return std::nullopt;
  return bucket;
}

std::vector<DecodeBucket> DecodeBuckets(int max_rows, int max_keys, int capacity,
                                        bool has_clusters) {
  max_rows = std::min({max_rows, capacity, kMaxBucketRows});
  const int num_splits = std::min(NumCudaSplits(max_keys), kMaxBucketSplits);
  const int most_splits = int(std::bit_ceil(unsigned(num_splits)));
  std::vector<DecodeBucket> buckets;
  for (int rows = 1, last_rows = 0; last_rows < max_rows; rows = NextRows(rows)) {
    last_rows = std::min(rows, capacity);
    for (int splits = most_splits; splits >= 1; splits /= 2) {
      const DecodeBucket bucket{.num_rows = last_rows, .max_splits = splits};
      if (IsBucket(bucket, has_clusters)) buckets.push_back(bucket);
    }
  }
  return buckets;
}

void PlanDecodeStep(const RaggedBatch& rows, const CudaPlanSetup& setup, const DecodeBucket& bucket,
                    CudaLaunchPlan& plan) {
  Clear(plan);
  for (size_t s = 0; s < rows.sequences.size(); ++s) AddSequence(rows, s, setup, plan);
  // Long rows first, so that the last blocks of a launch are short.
  std::sort(plan.decode_rows.begin(), plan.decode_rows.end(),
            [](const CudaDecodeRow& a, const CudaDecodeRow& b) {
              return a.num_keys != b.num_keys ? a.num_keys > b.num_keys : a.row < b.row;
            });
  const size_t num_rows = size_t(bucket.num_rows);
  plan.rows.resize(num_rows, {.position = -1});
  plan.decode_rows.resize(num_rows);
  const int64_t num_vectors = int64_t{bucket.num_rows} * setup.num_heads;
  plan.batches.push_back({.count = bucket.num_rows,
                          .max_splits = bucket.max_splits,
                          .cluster_blocks = setup.has_clusters
                                                ? ClusterBlocksFor(bucket.max_splits, num_vectors,
                                                                   setup.num_multiprocessors)
                                                : 0});
  if (setup.has_clusters) return;
  for (CudaDecodeRow& row : plan.decode_rows) {
    row.split_idx = plan.num_splits;
    plan.num_splits += size_t(bucket.max_splits);
  }
}

}  // namespace lssar
