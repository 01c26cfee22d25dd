// Which requests run: admission, the tokens of the next step, preemption.
#ifndef LSSAR_RUNTIME_SCHEDULER_H_
#define LSSAR_RUNTIME_SCHEDULER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "models/checkpoint.h"
#include "runtime/block_manager.h"
#include "runtime/engine_options.h"
#include "runtime/engine_stats.h"
#include "runtime/request_queue.h"
#include "runtime/sequence.h"
#include "runtime/speculator.h"
#include "runtime/tenants.h"
#include "runtime/token_budget.h"

namespace lssar {

// Whether a request can ever be admitted.
// Errors  INVALID_ARGUMENT: more tokens than max_model_len, more choices than may run together, or
//         more pages than the pool has; the message shows the arithmetic
absl::Status CheckFits(const Request& request, const EngineOptions& options,
                       const KvLayout& layout);

// A request of a tenant that runs nothing is overtaken by other tenants for this long: one that
// needs more than its tenant's share waits until that much is free.
inline constexpr std::chrono::seconds kMaxOvertaking{10};

// A sequence in a step, and the tokens of it that the step computes.
struct ScheduledSequence {
  SequenceGroup* group = nullptr;
  Sequence* sequence = nullptr;
  int num_tokens = 0;        // draft tokens included
  absl::Status status = {};  // not OK: the step failed for it
};

// One step is AbortDue, Admit, Schedule, AddDrafts, the model's step, then Complete for each
// scheduled sequence or, for all of them, OnInterrupted. TakeFinished returns the requests that
// ended, in between and at the end.
// Threads   the engine's thread only
class Scheduler {
 public:
  // What `checkpoint` owns, `blocks`, `waiting` and `speculator` must outlive the scheduler.
  Scheduler(const Checkpoint* checkpoint, const EngineOptions& options, BlockManager* blocks,
            RequestQueue* waiting, Speculator* speculator);

  // Ends requests that are cancelled or past their deadline, running or waiting, and notes which
  // sinks are not writable.
  void AbortDue(Clock::time_point now);
  // Resumes preempted sequences and admits waiting requests, as far as there are places and pages.
  // The admitted requests.
  std::span<SequenceGroup* const> Admit();
  // Chooses the tokens of the next step, in scheduling order, and allocates their pages. Preempts
  // sequences when out of pages.
  void Schedule();
  // Drafts tokens for the sequences that decode, as far as the step and the free pages have room: a
  // draft evicts and preempts nothing. The tokens of the step, valid until the next Schedule.
  std::span<ScheduledSequence> AddDrafts();
  // A flag that becomes true when the step should end at once, without a result, because another
  // tenant's request came: it would wait for a long step. Null: this step runs to its end, as it is
  // short, or several tenants share it, or it has drafts, which it would repeat.
  // After AddDrafts, until the next Schedule.
  const std::atomic<bool>* WatchForOthers();
  // The step ended without a result. The next ones are short, also where the other request is gone
  // by then: steps that are interrupted again and again would get nowhere.
  void OnInterrupted() { tenants_.ExpectAnother(); }
  // The tokens of `scheduled` are computed: the sequence advances. The pages of draft tokens that
  // were rejected are freed.
  void Complete(const ScheduledSequence& scheduled, Clock::time_point now);
  // Ends all requests, running or waiting, with `status`.
  void AbortAll(const absl::Status& status);
  // Frees the pages of the requests that ended, and moves them to `finished`.
  void TakeFinished(std::vector<std::unique_ptr<SequenceGroup>>* finished);

  // In scheduling order.
  std::span<const std::unique_ptr<SequenceGroup>> Running() const { return running_; }
  // The earliest deadline of all requests; time_point::max(): none has one.
  Clock::time_point NextDeadline() const;

  const SchedulerCounters& Totals() const { return totals_; }

 private:
  // The first `num_accepted` draft tokens became tokens of the sequence, or its last ones.
  void CompleteDraft(SequenceGroup* group, Sequence* sequence, int num_accepted);
  // Moves `group` behind the running requests that arrived before `now`, if its quantum is used up.
  void YieldAfterQuantum(SequenceGroup* group, Clock::time_point now);
  bool UsesPrefixCache(const Request& request) const;
  bool IsAnyPreempted() const;
  // Sequences that have a place and are paused: they are preempted where it is needed.
  int NumPausedPlaces() const;
  // Preempts paused sequences until so many more have places.
  // Requires  there are enough
  void TakePausedPlaces(int num_sequences);
  // Available pages that running sequences do not need soon.
  int64_t NumSparePages() const;
  // Pages that must be spare before `group` is admitted.
  int64_t NumAdmissionPages(const SequenceGroup& group) const;
  // One page more than its next token needs: otherwise the next request to be admitted would be
  // preempted at once.
  int PagesToRun(const Sequence& sequence) const;
  // Lets preempted sequences run again in scheduling order, as far as there are pages. Notes for
  // each tenant the effective arrival time of the first that has to wait longer.
  void Resume();
  void Resume(SequenceGroup* group, Sequence* sequence);
  // Whether a tenant that has so many places and pages has no more than its share.
  bool IsWithinShare(int num_sequences, int64_t num_pages) const;
  // Whether a running sequence of tenant `owner` may be preempted for tenant `to`, if `owner` has
  // more than its share. A tenant keeps one sequence, and the first of all is never preempted.
  bool MayLose(const Tenant& owner, const Tenant& to, const Sequence& sequence) const;
  // Whether `group` can be admitted now, with that many sequences. Preempts sequences of tenants
  // that have more than their share for it.
  bool CanStart(const SequenceGroup& group, int* num_sequences);
  // Preempts sequences of other tenants until there are the places and pages. False: there are not
  // enough that are over their tenants' shares, and none is preempted.
  bool PreemptOthers(const Tenant& tenant, int num_sequences, int64_t num_pages);
  void Start(std::unique_ptr<SequenceGroup> group, int num_sequences);
  void MatchPrefix(SequenceGroup* group, Sequence* sequence);
  void Truncate(SequenceGroup* group, Sequence* sequence);
  // Counts the tokens from `num_computed` on that the cache had.
  void CountHits(SequenceGroup* group, const Sequence& sequence, int num_computed);
  // Forks the further sequences of `group` once the first one has computed the prompt.
  void ForkFromPrompt(SequenceGroup* group);
  // The first sequence that captures attention of the tenant with the least service. Null: none.
  const Sequence* NextCapture() const;
  // Sets scheduled_ to the sequences that may run, and required_tokens_.
  void CollectCandidates();
  // Allocates the pages of the scheduled tokens. Out of pages, a sequence gets fewer tokens.
  void AllocatePages();
  // Frees the pages of the sequence and of its drafts.
  void FreePages(Sequence* sequence);
  // Preempts the last sequence for which is_wanted(group, sequence) is true. False: there is none,
  // or it is `spared`.
  template <typename IsWanted>
  bool PreemptLast(const IsWanted& is_wanted, const Sequence* spared = nullptr);
  // The last sequence of a tenant that has more than `share` pages, for `tenant`.
  bool PreemptOverShare(const Tenant& tenant, int64_t share);
  // Preempts the last sequence in scheduling order, paused ones first; then one of a tenant that
  // has more than its share if that of `group` has not; then one of the same tenant. False: none
  // after `sequence` has pages. The first sequence gets them from any tenant.
  bool PreemptFor(const SequenceGroup& group, const Sequence& sequence);
  // The first in scheduling order that is not paused; no other is preempted for a sequence after
  // it. Null: there is none.
  const Sequence* FirstSequence() const;
  // Charges the step's tokens and the pages to their tenants.
  void ChargeTenants();
  void Preempt(SequenceGroup* group, Sequence* sequence);

  const Checkpoint* const checkpoint_;
  const EngineOptions options_;
  TokenBudget budget_;
  BlockManager* const blocks_;
  RequestQueue* const waiting_;
  Speculator* const speculator_;
  std::vector<std::unique_ptr<SequenceGroup>> running_;  // by effective arrival time
  Tenants tenants_;
  SchedulerCounters totals_;
  int64_t num_steps_ = 0;

  // State of the step; members to reuse their memory.
  std::vector<std::unique_ptr<SequenceGroup>> aborted_;  // while they waited
  Clock::time_point now_ = {};
  std::vector<const SequenceGroup*> first_waiting_;  // of each tenant
  int num_sequences_ = 0;  // neither done nor paused, preempted ones included
  int64_t num_spare_pages_ = 0;
  bool is_alone_ = false;  // no other request runs: all pages are available
  std::vector<std::pair<SequenceGroup*, Sequence*>> victims_;
  std::vector<SequenceGroup*> admitted_;
  bool others_wait_ = false;  // after the step's admissions
  std::vector<ScheduledSequence> scheduled_;
  std::vector<RequiredTokens> required_tokens_;  // element i belongs to scheduled_[i]
  std::vector<int> num_tokens_;                  // element i belongs to scheduled_[i]
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SCHEDULER_H_
