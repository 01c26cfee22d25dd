// The runtime state of one choice, or of continuations of a score item: tokens, pages, how far it
// is.
#ifndef LSSAR_RUNTIME_SEQUENCE_H_
#define LSSAR_RUNTIME_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/ops.h"
#include "runtime/prefix_cache.h"
#include "runtime/sequence_task.h"

namespace lssar {

enum class SequenceState : uint8_t {
  kRuns,
  kAwaitsPrompt,  // forks from the request's first as soon as that has computed the prompt
  kPreempted,     // gave its pages up; waits for others to be had
};

// Of `tokens`, the first num_computed have their K and V in `pages`; the rest are rows still to
// run. Nothing else tells a prompt from its continuation: a decode step is one row to run.
struct Sequence {
  std::vector<int32_t> tokens;
  int num_computed = 0;
  std::vector<int32_t> pages;  // ids in token order; sequence_pages.h
  int num_sealed_pages = 0;    // of the first pages: others may read them, so they are not written
  double rope_base = 0;        // fixed at admission from the length budget
  std::optional<PrefixRoot> root;  // in the prefix cache; nullopt: it takes no part
  SequenceState state = SequenceState::kRuns;
  AttentionStats attention;
  std::unique_ptr<SequenceTask> task;

  int NumPending() const { return int(tokens.size()) - num_computed; }
  bool IsDone() const { return task->IsDone(); }
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SEQUENCE_H_
