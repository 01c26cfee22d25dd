// What the engine counts: for GetInfo, GetStats, metrics, the watchdog and tests.
#ifndef LSSAR_RUNTIME_ENGINE_STATS_H_
#define LSSAR_RUNTIME_ENGINE_STATS_H_

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "kernels/ops.h"

namespace lssar {

// The scheduler's counters, since the start.
struct SchedulerCounters {
  int64_t num_generated_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t num_prefix_cache_queries = 0;  // tokens looked up
  int64_t num_prefix_cache_hits = 0;     // tokens found
  int64_t num_draft_tokens = 0;          // computed to be verified
  int64_t num_accepted_tokens = 0;       // of these, tokens that became output
};

// The model runner's counters, since the start; failed steps count as steps only.
struct ModelCounters {
  int64_t num_steps = 0;
  int64_t num_batched_tokens = 0;
  int64_t num_prompt_tokens = 0;  // computed
  AttentionStats attention = {};
};

// Time of the engine's thread by stage of a step. A device that computes asynchronously gets its
// work in `forward` and is waited for in `sample`. All of the draft model's time is in `forward`.
struct StageTimes {
  int64_t admit_ns = 0, schedule_ns = 0, forward_ns = 0, sample_ns = 0, output_ns = 0;
  int64_t idle_ns = 0;  // no work
};

// A snapshot.
struct EngineStats : SchedulerCounters, ModelCounters {
  bool is_serving = true;       // false: draining, stopped, or the backend failed for good
  bool is_device_lost = false;  // the device refuses every further call of this process
  int num_running = 0;          // requests
  int num_waiting = 0;          // requests
  int64_t num_waiting_tokens = 0;
  int num_pages = 0;
  int num_free_pages = 0;
  int num_cached_pages = 0;  // evictable: cached and not in use
  // The draft model's pages and failures; 0 without one.
  int num_draft_model_pages = 0;
  int num_free_draft_model_pages = 0;    // cached ones included
  int64_t num_draft_model_failures = 0;  // forwards that failed, sequences with NaN logits
  StageTimes stages = {};
  // The beginning of the step in progress; nullopt: none is. If it lies far back and no layer has
  // begun for as long, the engine hangs.
  std::optional<Clock::time_point> step_started_at = {};
  int64_t num_layers_begun = 0;  // since the start, the draft model's too
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ENGINE_STATS_H_
