// The partition of an attention op into tasks for threads, and the layout of its intermediate
// values.
#ifndef LSSAR_KERNELS_CPU_ATTENTION_PLAN_H_
#define LSSAR_KERNELS_CPU_ATTENTION_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace lssar {

// Keys of a chunk. Sums over keys are fp32 inside a chunk, with one accumulator per lane; chunk
// sums are added in rising order. Chains are short, so the error does not grow with the context. A
// chunk is a fixed range of keys (a whole number of pages of any size), so the bits of a row depend
// only on the row.
inline constexpr int kChunkKeys = kMaxPageSize;

// Keys of a split: the unit in which threads share a long row. Fixed too: splits are added in
// order.
inline constexpr int kSplitKeys = 8 * kChunkKeys;

// Rows that share one read of K. Widening a tile of K costs as much as a quarter of one row's
// dot products with it.
inline constexpr int kBlockRows = 32;

// Rows that the register kernels process together. The rows of a block are padded to whole groups.
inline constexpr int kGroupRows = 4;

// Floats of the widest vector, and of a cache line.
inline constexpr size_t kVectorFloats = 16;

// The unit of Score, Reduce and Weigh: rows that read the same KV head. A row of an item is one
// query token in one query head. The rows are either adjacent tokens of one sequence in one head,
// or (is_decode) adjacent heads of one token, all with the same keys.
struct AttentionItem {
  const SequenceSlice* sequence = nullptr;
  int sequence_idx = 0;
  int head = 0;  // query head of row 0
  int kv_head = 0;
  int first_row = 0;  // of row 0's token, in the sequence
  int num_rows = 0;
  bool is_decode = false;
  // True: threads share the item's splits, and its intermediate values are at shared_idx of the
  // shared scratch (in floats). False: one thread computes the item in its own scratch.
  bool is_shared = false;
  size_t shared_idx = 0;

  int NumKeys(int row) const {
    return sequence->first_position + first_row + (is_decode ? 0 : row) + 1;
  }
  int MaxKeys() const { return NumKeys(num_rows - 1); }
  int NumSplits() const { return (MaxKeys() + kSplitKeys - 1) / kSplitKeys; }
  // Rows that are computed: whole groups, or a decode step's own rows.
  int PaddedRows() const {
    return is_decode ? num_rows : (num_rows + kGroupRows - 1) / kGroupRows * kGroupRows;
  }
  // Rows of the group that starts at `row`, a multiple of kGroupRows.
  int GroupRows(int row) const { return std::min(kGroupRows, PaddedRows() - row); }
};

// A task of a thread: a whole item, or one split of a shared item.
struct AttentionTask {
  int item_idx = 0;
  int split = 0;
};

// The backend reuses one plan for all ops, so planning allocates no memory after the first steps.
struct AttentionPlan {
  std::vector<AttentionItem> items;
  std::vector<AttentionTask> first_tasks;  // loop 1: whole items, and Score of shared splits
  std::vector<AttentionTask> split_tasks;  // loop 2: Weigh of shared splits
  std::vector<int> shared_items;           // loop 3: Merge of shared items
  size_t num_shared_floats = 0;
};

// The intermediate values of one item, in scratch memory.
struct ItemValues {
  ItemValues(const AttentionItem& item, const KvLayout& layout, float* scratch);

  // Floats of scratch that an item needs.
  static size_t NumFloats(const AttentionItem& item, const KvLayout& layout);

  float* Scores(int row) const { return scores + size_t(row) * row_stride; }
  size_t AtSplit(int row, int split) const {
    return size_t(split) * size_t(padded_rows) + size_t(row);
  }
  float* Partial(int row, int split) const { return partial + AtSplit(row, split) * padded_dim; }
  // fx16: the candidates' keys in a row, counted from the first key of their chunk. Those of a
  // chunk begin at its first key.
  uint8_t* CandidateKeys(int row) const { return candidate_keys + size_t(row) * row_stride; }
  // fx16: the number of candidates in a row and the chunk that begins at key `chunk`.
  int32_t& NumCandidates(int row, int chunk) const {
    return num_candidates[size_t(row) * (row_stride / kChunkKeys) + size_t(chunk / kChunkKeys)];
  }

  size_t row_stride = 0;  // floats
  size_t padded_dim = 0;
  int padded_rows = 0;
  double* sum = nullptr;         // [split][row] of phi
  double* weight_sum = nullptr;  // [split][row] of u^p
  int64_t* num_read = nullptr;   // [split][row] non-zero weights
  float* max = nullptr;          // [split][row] of phi; of scores if phi is e^s or fx16
  float* refined_max = nullptr;  // [split][row] fx16: of the candidates' scores; max: lower bounds
  float* scores = nullptr;       // [row][row_stride]: Score writes phi, Weigh replaces it by u^p
  uint8_t* candidate_keys = nullptr;  // fx16 [row][row_stride]
  int32_t* num_candidates = nullptr;  // fx16 [row][chunk]
  float* partial = nullptr;           // [split][row][padded_dim] sums of u^p v
};

// Requires  num_threads >= 1
void PlanAttention(const AttentionArgs& args, int num_threads, AttentionPlan* plan);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_ATTENTION_PLAN_H_
