// How an attention op is cut into work for threads, and where its intermediate values lie.
#ifndef LSSAR_KERNELS_CPU_ATTENTION_PLAN_H_
#define LSSAR_KERNELS_CPU_ATTENTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace lssar {

// Sums over keys are taken inside a chunk in fp32, one accumulator a lane, then chunk by chunk in
// rising order: short chains, so the error does not grow with the context. A chunk is a fixed
// range of keys (a whole number of pages of any size), which is what makes the bits of a row
// independent of everything but the row.
inline constexpr int kChunkKeys = kMaxPageSize;

// Keys that one thread takes at least when a row has more keys than the others have work. Fixed
// as well, though no bit depends on it: partial sums are kept per chunk order inside of it.
inline constexpr int kSplitKeys = 8 * kChunkKeys;

// Query rows that share one pass over K. Widening a tile of K costs as much as a quarter of a
// row's dot products with it.
inline constexpr int kBlockRows = 32;

// Rows that the register kernels take at once; a block's rows are padded to whole groups.
inline constexpr int kGroupRows = 4;

// Floats of the widest vector, and of a cache line.
inline constexpr size_t kVectorFloats = 16;

// Adjacent rows of one sequence, in one head: what Score, Reduce and Weigh work on.
struct AttentionItem {
  const SequenceSlice* sequence = nullptr;
  int sequence_idx = 0;
  int head = 0;
  int first_row = 0;  // in the sequence
  int num_rows = 0;
  // Threads share the item's splits, its intermediate values lie at this index of the shared
  // scratch (floats). Otherwise one thread does it all in its own scratch.
  bool is_shared = false;
  size_t shared_idx = 0;

  int NumKeys(int row) const { return sequence->first_position + first_row + row + 1; }
  int MaxKeys() const { return NumKeys(num_rows - 1); }
  int NumSplits() const { return (MaxKeys() + kSplitKeys - 1) / kSplitKeys; }
  // Rows that are computed: whole groups, or the single row of a decode step.
  int PaddedRows() const {
    return num_rows == 1 ? 1 : (num_rows + kGroupRows - 1) / kGroupRows * kGroupRows;
  }
};

// One call of a thread's loop: a whole item, or one split of a shared item.
struct AttentionTask {
  int item_idx = 0;
  int split = 0;
};

// Kept by the backend from one op to the next, so that planning allocates nothing once warm.
struct AttentionPlan {
  std::vector<AttentionItem> items;
  std::vector<AttentionTask> first_tasks;  // of the first pass: whole items and Scores
  std::vector<AttentionTask> split_tasks;  // of the second pass: Weigh
  std::vector<int> shared_items;           // of the third pass: merge
  size_t num_shared_floats = 0;
};

// Intermediate values of one item, carved out of a piece of scratch.
struct ItemValues {
  ItemValues(const AttentionItem& item, int head_dim, float* scratch);

  // Floats of scratch that an item needs.
  static size_t NumFloats(const AttentionItem& item, int head_dim);

  float* Scores(int row) const { return scores + static_cast<size_t>(row) * row_stride; }
  size_t AtSplit(int row, int split) const {
    return static_cast<size_t>(split) * static_cast<size_t>(padded_rows) + static_cast<size_t>(row);
  }
  float* Partial(int row, int split) const { return partial + AtSplit(row, split) * padded_dim; }

  size_t row_stride = 0;  // floats
  size_t padded_dim = 0;
  int padded_rows = 0;
  double* sum = nullptr;         // [split][row] of softplus scores
  double* weight_sum = nullptr;  // [split][row] of u^p
  int64_t* num_read = nullptr;   // [split][row] non-zero weights
  float* max = nullptr;          // [split][row] of scores
  float* scores = nullptr;   // [row][row_stride]; Score writes scores, Weigh turns them into u^p
  float* partial = nullptr;  // [split][row][padded_dim] sums of u^p v
};

// Requires  num_threads >= 1
void PlanAttention(const AttentionArgs& args, int num_threads, AttentionPlan& plan);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_ATTENTION_PLAN_H_
