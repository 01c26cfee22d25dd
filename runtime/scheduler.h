// Which rows run in the next step. Pure: no clock, no device, no lock, no memory of its own.
#ifndef LSSAR_RUNTIME_SCHEDULER_H_
#define LSSAR_RUNTIME_SCHEDULER_H_

#include <span>
#include <vector>

namespace lssar {

// What a plan needs to know of a running sequence.
struct SequenceView {
  int num_pending = 0;  // rows still to run, >= 1
};

struct PlannedRows {
  int sequence_idx = 0;  // into the views
  int num_rows = 0;      // >= 1
};

// Rising sequence_idx: rows of a batch stand in order of arrival.
using StepPlan = std::vector<PlannedRows>;

class Scheduler {
 public:
  // `step_tokens`: rows of one step at most.
  explicit Scheduler(int step_tokens) : step_tokens_(step_tokens) {}

  // Sequences that need one row get it first: decode steps, so that no prompt holds up the others'
  // next token. What is left of the budget goes to longer runs (prompts, continuations to score) in
  // order of arrival, each as much as it needs: the oldest is done soonest.
  // Requires  `running` in order of arrival, at most step_tokens of them: so every decode step has
  //           its row, and while one waits for a prompt, the oldest prompt goes on
  // Ensures   1 <= planned rows <= step_tokens when anything runs
  void Plan(std::span<const SequenceView> running, StepPlan* plan) const;

 private:
  int step_tokens_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SCHEDULER_H_
