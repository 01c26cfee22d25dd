// How the rows of a step are cut into work for the device. Made on the host, once for all layers.
#ifndef LSSAR_KERNELS_CUDA_STEP_PLAN_H_
#define LSSAR_KERNELS_CUDA_STEP_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/kernel_args.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops.h"

namespace lssar {

// Sequences of at most this many rows attend row by row; longer ones in tiles, which read K and V
// once for 64 rows but leave a whole sequence's keys to one block.
inline constexpr int kMaxLoneRows = 4;

// Decode rows [first, first + count) of the plan, which one launch takes.
struct CudaDecodeBatch {
  int first = 0;
  int count = 0;
  int max_splits = 0;
  int cluster_blocks = 0;  // 0: by splits
};

struct CudaStepPlan {
  std::vector<CudaRow> rows;
  std::vector<int32_t> pages;  // of all sequences, one after the other
  std::vector<CudaDecodeRow> decode_rows;
  std::vector<CudaDecodeBatch> batches;
  std::vector<CudaTile> tiles;  // the longest first
  // What batches without clusters need of scratch, of all heads.
  size_t num_scores = 0;
  size_t num_splits = 0;
};

// What a plan depends on besides the rows.
struct CudaPlanSetup {
  int num_heads = 1;
  int page_size = 64;
  int num_multiprocessors = 132;
  bool has_clusters = true;
};

constexpr int NumCudaSplits(int num_keys) {
  return (num_keys + kCudaSplitKeys - 1) / kCudaSplitKeys;
}

// Blocks that share a row of `num_splits` splits when `num_vectors` rows and heads are computed at
// once: as few as hold its scores and fill the device. 0: more than a cluster holds. It moves work,
// not bits.
int ClusterBlocksFor(int num_splits, int64_t num_vectors, int num_multiprocessors);

void PlanCudaStep(const RaggedBatch& rows, const CudaPlanSetup& setup, CudaStepPlan& plan);

// The shape of a decode step as a graph keeps it: what differs between steps of one bucket stands
// in their tables alone.
struct DecodeBucket {
  int num_rows = 0;
  int max_splits = 0;  // of the row with most keys
  bool operator==(const DecodeBucket&) const = default;
};

inline constexpr int kMaxBucketRows = 64;
inline constexpr int kMaxBucketSplits = 256;  // 64K keys: what a cluster holds

// The smallest bucket that holds the step, of at most `max_rows` rows. None where a sequence has
// rows enough for tiles, and where rows or keys are too many, or, without clusters, so many that
// scratch for them would be large.
std::optional<DecodeBucket> DecodeBucketFor(const RaggedBatch& rows, int max_rows,
                                            bool has_clusters);

// As PlanCudaStep, in the bucket's shape: all rows in one batch, tables and scratch as large as the
// bucket, rows past the step's last marked as none.
// Requires  the step fits the bucket
void PlanDecodeStep(const RaggedBatch& rows, const CudaPlanSetup& setup, const DecodeBucket& bucket,
                    CudaStepPlan& plan);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_STEP_PLAN_H_
