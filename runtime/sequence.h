// A request that waits or runs (SequenceGroup), and its continuations (Sequence).
#ifndef LSSAR_RUNTIME_SEQUENCE_H_
#define LSSAR_RUNTIME_SEQUENCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"
#include "models/checkpoint.h"
#include "runtime/limits.h"
#include "runtime/prefix_cache.h"
#include "runtime/request.h"
#include "runtime/sequence_task.h"
#include "runtime/speculator.h"

namespace lssar {

enum class SequenceState : uint8_t {
  kRunning,
  kWaitingForPrompt,  // is forked from the group's first sequence once that has the prompt
  kPreempted,         // has no pages; is recomputed when pages are available
};

// One choice of a generate request; one of the sequences that score an item's continuations; or the
// prompt of a capture or embed request.
//
// K and V of the first num_computed_tokens of `tokens` are in `pages`; the others are pending.
// Prefill and decode differ in nothing else: a decode step has one pending token.
struct Sequence {
  std::vector<int32_t> tokens;
  int num_computed_tokens = 0;
  // Tokens that may follow `tokens`: computed in the step to be verified (speculative decoding).
  // Empty between steps.
  std::vector<int32_t> draft;
  std::unique_ptr<DraftState> draft_state;  // null: nothing was drafted yet
  std::vector<int32_t> pages;               // page table: ids in token order
  int num_read_only_pages = 0;              // the first pages, which other sequences may read
  double rope_base = 0;                     // fixed at admission from the length budget
  int num_prompt_tokens = 0;  // statistics count tokens before this position as prompt tokens
  std::optional<PrefixRoot> prefix_root;  // nullopt: does not use the prefix cache
  SequenceState state = SequenceState::kRunning;
  bool waited_for_prompt = false;  // before it was preempted
  int64_t last_step = 0;           // of the scheduler, that computed a token of it
  AttentionStats attention;
  std::unique_ptr<SequenceTask> task;

  int NumPendingTokens() const { return int(tokens.size()) - num_computed_tokens; }
  bool IsDone() const { return task->IsDone(); }
};

// The resources that a request needs in the worst case. Pages are allocated as they are needed, but
// a request that could not finish with the whole pool to itself is refused.
struct RequiredResources {
  int num_sequences = 0;      // choices; 1 for other kinds
  int max_num_sequences = 0;  // that it has a use for: a score item's continuations side by side
  int num_tokens = 0;         // of each sequence: prompt + max_tokens, context + continuation
  int num_read_tokens = 0;    // of these, by the model: all but the last new one
  int num_pages = 0;          // of each sequence
  int num_shared_pages = 0;   // of these, full pages of the common prompt
  int num_initial_pages = 0;  // of the first sequence, to be available at admission
  int NumOwnPages() const { return num_pages - num_shared_pages; }
  int64_t TotalPages() const { return num_shared_pages + int64_t(num_sequences) * NumOwnPages(); }
};

// A score item has at most this many sequences. Most benchmarks of knowledge have four choices; a
// sequence counts against max_num_seqs and needs a copy of the context's last page.
inline constexpr int kMaxScoreSequences = 8;

// Tokens that may follow the prompt, at most.
int64_t MaxFurtherTokens(const Request& request);
// Requires  the number of tokens fits an int (CheckFits)
RequiredResources RequiredResourcesOf(const Request& request, const KvLayout& layout);
// The root of its pages, which is valid as long as `request`.
PrefixRoot PrefixRootOf(const Request& request, double rope_base);
// "prompt 200 + max_tokens 57 = 257 tokens", for errors.
std::string DescribeLength(const Request& request);

struct Tenant;

struct SequenceGroup {
  // From Submit on.
  Request request;
  std::string tenant;  // whose request it is; equal shares for each (tenants.h)
  std::shared_ptr<OutputSink> sink;
  std::shared_ptr<std::atomic<bool>> cancelled;
  Clock::time_point arrival_time;
  RequiredResources required;
  absl::Status status;  // not OK: the request ends with it

  // From admission on.
  std::vector<Sequence> sequences;  // never resized: the step points into it
  Tenant* owner = nullptr;          // that of `tenant`
  bool is_paused = false;           // the sink was not writable at the start of this step
  int num_cached_tokens = 0;
  int num_preemptions = 0;
  int num_draft_tokens = 0;
  int num_accepted_tokens = 0;
  std::optional<Clock::time_point> admitted_at, prefilled_at;
  // The quantum of a score request is a step's worth of tokens (max_num_batched_tokens). Beyond it
  // the request yields before its next continuation to the requests that have arrived by then: they
  // do not wait for all of its continuations.
  std::optional<Clock::time_point> yielded_at;
  int64_t num_quantum_tokens = 0;  // computed in this quantum

  // The order in which requests run: priority and waiting in one number that does not change while
  // they wait, as if a request of higher priority had arrived that much earlier. Smaller runs
  // first.
  Clock::time_point EffectiveArrivalTime() const {
    return yielded_at.value_or(arrival_time) - request.priority * limits::kWaitPerPriority;
  }
  // CANCELLED or DEADLINE_EXCEEDED if the request should end with it now; else OK.
  absl::Status AbortStatus(Clock::time_point now) const;
  bool IsFinished() const;
  RequestStats Stats(Clock::time_point now) const;

  // Makes the sequences of an admitted request, without pages. What `checkpoint` owns must outlive
  // the group.
  void Start(int num_sequences, const Checkpoint& checkpoint, bool use_prefix_cache);
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SEQUENCE_H_
