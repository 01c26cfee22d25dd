// Divides the rows of a step into launches. Made on the host, once for all layers.
#ifndef LSSAR_KERNELS_CUDA_LAUNCH_PLAN_H_
#define LSSAR_KERNELS_CUDA_LAUNCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/kernel_args.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops.h"

namespace lssar {

// Sequences with at most this many rows use decode attention, row by row. Longer ones use prefill
// tiles, which read K and V once for 64 or 128 rows but compute all of their keys in one block.
inline constexpr int kMaxDecodeRows = 4;

// Decode rows [first, first + count) of the plan: one launch.
struct CudaDecodeBatch {
  int first = 0;
  int count = 0;
  int max_splits = 0;
  int cluster_blocks = 0;  // 0: split decode
};

struct CudaLaunchPlan {
  std::vector<CudaRow> rows;
  std::vector<int32_t> pages;  // page tables of all sequences, concatenated
  std::vector<CudaDecodeRow> decode_rows;
  std::vector<CudaDecodeBatch> batches;
  std::vector<CudaTile> tiles;  // most keys first
  int tile_rows = kTileRows;    // of a tile, at most
  size_t num_splits = 0;        // of the split decode batches, in one head
};

// Inputs of a plan besides the rows.
struct CudaPlanSetup {
  int num_heads = 1;  // of K and V; an estimate of the work, no more
  int page_size = 64;
  int num_multiprocessors = 132;
  bool has_clusters = true;
};

constexpr int NumCudaSplits(int num_keys) {
  return (num_keys + kCudaSplitKeys - 1) / kCudaSplitKeys;
}

// Blocks of the cluster that shares a row of `num_splits` splits, when a launch computes
// `num_vectors` pairs of row and head: as few as hold the row's scores and fill the device. 0: more
// splits than a cluster holds. The choice changes speed, not bits.
int ClusterBlocksFor(int num_splits, int64_t num_vectors, int num_multiprocessors);

void PlanCudaStep(const RaggedBatch& rows, const CudaPlanSetup& setup, CudaLaunchPlan& plan);

// The shape of a decode step in a graph. Steps of one bucket differ only in their tables.
struct DecodeBucket {
  int num_rows = 0;
  int max_splits = 0;  // of the row with most keys
  bool operator==(const DecodeBucket&) const = default;
};

inline constexpr int kMaxBucketRows = 64;
inline constexpr int kMaxBucketSplits = 256;  // 64K keys, the most that a cluster holds

// The smallest bucket that holds the step, with at most `max_rows` rows. None if a sequence has
// enough rows for prefill tiles, if there are too many rows or keys, or, without clusters, if their
// scratch would be too large.
std::optional<DecodeBucket> DecodeBucketFor(const RaggedBatch& rows, int max_rows,
                                            bool has_clusters);

// The buckets of all steps of up to max_rows rows with at most max_keys keys each, when arrays have
// space for `capacity` rows: by rows, then from most splits to one.
std::vector<DecodeBucket> DecodeBuckets(int max_rows, int max_keys, int capacity,
                                        bool has_clusters);

// As PlanCudaStep, in the bucket's shape: all rows in one batch, tables and scratch sized for the
// bucket, extra rows marked as padding.
// Requires  the step fits the bucket
void PlanDecodeStep(const RaggedBatch& rows, const CudaPlanSetup& setup, const DecodeBucket& bucket,
                    CudaLaunchPlan& plan);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_LAUNCH_PLAN_H_
