#include "runtime/scheduler.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"

namespace lssar {
namespace {

// Of the row at `position`, in units of a key.
int64_t CostAt(int position) { return int64_t{kKeysPerRowCost} + position; }

// How many rows from `first_row` on cost no more than `*budget`, which they are taken from; at most
// `max_rows`, at least `min_rows`.
int TakeRows(int first_row, int min_rows, int max_rows, int64_t* budget) {
  int num_rows = 0;
  while (num_rows < max_rows && (num_rows < min_rows || CostAt(first_row + num_rows) <= *budget)) {
    *budget -= CostAt(first_row + num_rows++);
  }
  return num_rows;
}

}  // namespace

void Scheduler::Plan(std::span<const SequenceView> running, StepPlan* plan) const {
  LSSAR_CHECK(running.size() <= size_t(limits_.max_num_batched_tokens));
  plan->clear();
  int num_free_rows = limits_.max_num_batched_tokens;
  bool is_awaited = false;  // by a reader
  for (const SequenceView& sequence : running) {
    num_free_rows -= sequence.num_pending == 1;
    is_awaited |= sequence.num_pending == 1 && sequence.streams;
  }
  int num_chunks_left =
      is_awaited ? limits_.max_num_partial_prefills : limits_.max_num_batched_tokens;
  int64_t budget = is_awaited ? int64_t{limits_.chunked_prefill_size} * kKeysPerRowCost
                              : std::numeric_limits<int64_t>::max();
  bool is_first_prompt = true;
  for (int i = 0; i < int(running.size()); ++i) {
    const SequenceView& sequence = running[size_t(i)];
    LSSAR_CHECK(sequence.num_pending >= 1);
    int num_rows = 1;
    if (sequence.num_pending > 1) {
      if (num_chunks_left == 0) continue;
      num_rows = TakeRows(sequence.first_row, is_first_prompt ? 1 : 0,
                          std::min(sequence.num_pending, num_free_rows), &budget);
      is_first_prompt = false;
      if (num_rows == 0) continue;
      --num_chunks_left;
      num_free_rows -= num_rows;
    }
    plan->push_back({.sequence_idx = i, .num_rows = num_rows});
  }
}

}  // namespace lssar
