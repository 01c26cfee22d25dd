#include "runtime/scheduler.h"

#include <algorithm>

#include "kernels/check.h"

namespace lssar {

void Scheduler::Plan(std::span<const SequenceView> running, StepPlan* plan) const {
  LSSAR_CHECK(running.size() <= size_t(step_tokens_));
  plan->clear();
  int budget = step_tokens_;
  for (const SequenceView& sequence : running) budget -= sequence.num_pending == 1;
  for (int i = 0; i < int(running.size()); ++i) {
    const int num_pending = running[size_t(i)].num_pending;
    LSSAR_CHECK(num_pending >= 1);
    const int num_rows = num_pending == 1 ? 1 : std::min(num_pending, budget);
    if (num_rows == 0) continue;
    if (num_pending > 1) budget -= num_rows;
    plan->push_back({.sequence_idx = i, .num_rows = num_rows});
  }
}

}  // namespace lssar
