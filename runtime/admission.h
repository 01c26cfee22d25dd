// What a request needs of the engine, and whether it can ever be had. Pure.
#ifndef LSSAR_RUNTIME_ADMISSION_H_
#define LSSAR_RUNTIME_ADMISSION_H_

#include "absl/status/status.h"
#include "kernels/kv_layout.h"
#include "runtime/engine.h"
#include "runtime/request.h"

namespace lssar {

// Continuations of one score item that run side by side at most. Four are what most tests of
// knowledge have; each takes a place among the running and a copy of the context's last page.
inline constexpr int kMaxSideBySide = 8;

// The worst case. Pages are taken as they are needed; but what could not be held at its end, with
// all other requests gone, is not begun.
struct Demand {
  int num_sequences = 0;     // choices; 1 for a score item
  int max_num_seqs = 0;      // that it has a use for: of a score item, continuations side by side
  int num_tokens = 0;        // of each at most: prompt + max_tokens, context + longest continuation
  int num_pages = 0;         // of each
  int num_shared_pages = 0;  // of these, full of what the sequences have in common
  int NumOwnPages() const { return num_pages - num_shared_pages; }
  int64_t TotalPages() const { return num_shared_pages + int64_t(num_sequences) * NumOwnPages(); }
};

// Requires  num_tokens fits an int: CheckFits made sure
Demand DemandOf(const Request& request, const KvLayout& layout);

// Prompt tokens that may wait.
int64_t MaxQueuedTokens(const EngineOptions& options);

// Sequences that may run at once.
int MaxRunning(const EngineOptions& options);

// Errors  INVALID_ARGUMENT: can never be admitted; shows the arithmetic.
absl::Status CheckFits(const Request& request, const EngineOptions& options,
                       const KvLayout& layout);

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ADMISSION_H_
