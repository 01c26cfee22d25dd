// Which rows run in the next step. Pure: no clock, no device, no lock, no memory of its own.
#ifndef LSSAR_RUNTIME_SCHEDULER_H_
#define LSSAR_RUNTIME_SCHEDULER_H_

#include <cstdint>
#include <span>
#include <vector>

namespace lssar {

// What a plan needs to know of a running sequence.
struct SequenceView {
  int num_pending = 0;   // rows still to run, >= 1
  int first_row = 0;     // position of the first of them: how many keys it has before it
  bool streams = false;  // a reader waits for each of its tokens
};

struct PlannedRows {
  int sequence_idx = 0;  // into the views
  int num_rows = 0;      // >= 1
};

// Rising sequence_idx: rows of a batch stand in order of seniority.
using StepPlan = std::vector<PlannedRows>;

// A prompt's row costs as much as the first one, and once more for every so many keys before it. On
// lssar-6m with two cores a row takes 53 us at the start, 120 behind 4K keys and 460 behind 16K, in
// chunks of 512; twice that in the chunks of a few rows that a step with readers leaves there.
inline constexpr int kKeysPerRowCost = 1024;

class Scheduler {
 public:
  struct Limits {
    int max_num_batched_tokens = 1;  // rows of one step at most
    // Of a step in which a reader waits for its next token: prompts that advance, and what all of
    // their rows cost together, in rows at the start of a prompt.
    int max_num_partial_prefills = 1;
    int chunked_prefill_size = 1;
  };
  explicit Scheduler(const Limits& limits) : limits_(limits) {}

  // Sequences that need one row get it first: decode steps, so that no prompt holds up the others'
  // next token. What is left goes to longer runs (prompts, continuations to score) in order of
  // seniority, each as much as it needs: the most senior is done soonest. While a reader waits for
  // a token of the step, they share max_num_partial_prefills and chunked_prefill_size; the most senior one has a
  // row even where that costs more.
  // Requires  `running` in order of seniority, at most max_num_batched_tokens of them: so every decode step
  //           has its row, and while one waits for a prompt, the most senior prompt goes on
  // Ensures   1 <= planned rows <= max_num_batched_tokens when anything runs
  void Plan(std::span<const SequenceView> running, StepPlan* plan) const;

 private:
  Limits limits_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SCHEDULER_H_
