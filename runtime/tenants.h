// The tenants of the engine, and what each of them uses: weighted fair queueing between clients.
#ifndef LSSAR_RUNTIME_TENANTS_H_
#define LSSAR_RUNTIME_TENANTS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "runtime/sequence.h"

namespace lssar {

// Whose requests share one part of the engine.
struct Tenant {
  // Virtual time: what was computed and held for the tenant, in the units of CostOf
  // (token_budget.h). The tenant with the least of it comes first.
  int64_t service = 0;
  // What it may take of a step before the step is shared equally, in the same units: it left that
  // much of earlier ones to others.
  int64_t credit = 0;
  int64_t step_cost = 0;  // of its tokens in this step
  Clock::time_point last_active = {};
  int64_t last_step = 0;
  bool is_active = false;  // has requests that wait or run
  int rank = 0;            // among the active tenants, by service
  // The running requests. Pages: entries of the page tables of sequences that are not paused.
  int num_sequences = 0;
  int num_running_sequences = 0;  // neither preempted nor paused
  int64_t num_pages = 0;
  // The effective arrival time of its first preempted sequence that may not resume yet.
  Clock::time_point first_preempted = Clock::time_point::max();
};

// Shares are equal: 1/n of the places and pages for n tenants. A tenant counts for kMemory after
// its last request, so that the pauses between its requests do not change the others' shares.
//
// Threads  the engine's only
class Tenants {
 public:
  static constexpr std::chrono::seconds kMemory{10};
  // A tenant's credit, in steps: so a short prompt of one that asks seldom is computed at once, and
  // the others' texts stand still for no longer than this.
  static constexpr int kMaxCreditSteps = 2;

  // `step_cost`: of a step that several tenants share, at most
  explicit Tenants(int64_t step_cost) : step_cost_(step_cost) {}

  // Notes which tenants have requests. Sets `owner` of the running ones and the ranks.
  void BeginStep(std::span<const std::unique_ptr<SequenceGroup>> running,
                 std::span<const SequenceGroup* const> first_waiting, Clock::time_point now);
  // Counts what the running requests use.
  void CountUsage(std::span<const std::unique_ptr<SequenceGroup>> running);

  // Requires  a tenant of BeginStep
  Tenant& Of(const std::string& name) { return tenants_.find(name)->second; }
  // More than one tenant has requests or had some lately, or is expected.
  bool AreShared() const { return tenants_.size() > 1 || expected_until_ > now_; }
  // Another tenant's request came. It counts as one that runs, even if it has ended since.
  void ExpectAnother() { expected_until_ = now_ + kMemory; }
  // The part of `total` that is one tenant's, at least 1.
  int64_t ShareOf(int64_t total) const {
    return std::max(int64_t{1}, total / std::max(int64_t{1}, int64_t(tenants_.size())));
  }
  // Not preempted: each has a place.
  int NumRunningSequences() const { return num_running_sequences_; }

  // The tokens of a step were computed at this cost.
  static void ChargeTokens(int64_t cost, Tenant* tenant) {
    tenant->service += cost;
    tenant->step_cost += cost;
  }
  // A step of this cost: its tokens were charged to their tenants, and the pages of the pool are
  // worth as much again. A tenant that took less than an equal part of it gets the rest as credit,
  // at the expense of the others.
  void EndStep(int64_t cost, int num_pages);

 private:
  const int64_t step_cost_;
  std::map<std::string, Tenant> tenants_;
  std::vector<Tenant*> active_;
  // The least service of the active tenants: where a tenant begins that has been idle.
  int64_t virtual_time_ = 0;
  int64_t num_steps_ = 0;
  int num_running_sequences_ = 0;
  Clock::time_point now_ = {}, expected_until_ = {};
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_TENANTS_H_
