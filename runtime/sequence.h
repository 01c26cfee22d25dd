// The runtime state of one choice or one score item: tokens, pages, how far it is.
#ifndef LSSAR_RUNTIME_SEQUENCE_H_
#define LSSAR_RUNTIME_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "runtime/sequence_task.h"

namespace lssar {

// Of `tokens`, the first num_computed have their K and V in `pages`; the rest are rows still to
// run. Nothing else tells a prompt from its continuation: a decode step is one row to run.
struct Sequence {
  std::vector<int32_t> tokens;
  int num_computed = 0;
  std::vector<int32_t> pages;  // ids in token order, enough for the length budget
  double rope_base = 0;        // fixed at admission from the length budget
  AttentionCounters attention;
  std::unique_ptr<SequenceTask> task;

  int NumPending() const { return int(tokens.size()) - num_computed; }
  bool IsDone() const { return task->IsDone(); }
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SEQUENCE_H_
