// How the rows of a step are cut into work for the device. Made on the host, once for all layers.
#ifndef LSSAR_KERNELS_CUDA_STEP_PLAN_H_
#define LSSAR_KERNELS_CUDA_STEP_PLAN_H_

#include <cstddef>
#include <cstdint>
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
  int page_tokens = 64;
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

void PlanCudaStep(const RaggedRows& rows, const CudaPlanSetup& setup, CudaStepPlan& plan);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_STEP_PLAN_H_
