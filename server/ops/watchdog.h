// Detects that the engine has failed or hangs.
#ifndef LSSAR_SERVER_OPS_WATCHDOG_H_
#define LSSAR_SERVER_OPS_WATCHDOG_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/periodic_thread.h"
#include "runtime/engine.h"
#include "server/ops/watched_time.h"

namespace lssar {

struct EngineFailure {
  absl::Status status;                            // UNAVAILABLE: for clients and probes
  std::optional<Clock::duration> stuck_for = {};  // how long its step has run; nullopt: it failed
  bool is_device_lost = false;                    // the cause of the failure
};

// Derives the failure from successive EngineStats.
class StepWatch {
 public:
  // `step_timeout`: a step that has begun no layer for longer hangs; zero: no limit.
  // `max_gap`: of WatchedTime; both functions are looks.
  StepWatch(Clock::duration step_timeout, Clock::duration max_gap)
      : step_timeout_(step_timeout), time_(max_gap) {}

  // For how long the current step has run; zero: none is running.
  Clock::duration StepAge(const EngineStats& stats, Clock::time_point now);
  // Nullopt if there is no failure.
  std::optional<EngineFailure> Check(const EngineStats& stats, Clock::time_point now);

 private:
  const Clock::duration step_timeout_;
  WatchedTime time_;
  Clock::time_point step_started_at_ = {};  // of the current step; the epoch: no step is running
  int64_t num_layers_begun_ = 0;            // at the last look
  Clock::duration step_age_ = {};
  Clock::duration layer_age_ = {};  // since the step or one of its layers was seen to begin
};

// Polls the engine's stats on a thread of its own and reports the first failure.
class Watchdog {
 public:
  using GetEngineStats = std::function<EngineStats()>;
  using OnFailure = std::function<void(const EngineFailure&)>;

  // Calls `on_failure` at most once, on the watchdog's thread. Calls `stats` eight times per
  // `step_timeout`, but at least once and at most a hundred times per second.
  // The destructor waits for a running `on_failure`.
  Watchdog(absl::Duration step_timeout, GetEngineStats stats, OnFailure on_failure);

  // StepWatch's, now.
  Clock::duration StepAge();
  // Call before shutting the engine down: from now on an engine that has stopped is no failure.
  void ExpectShutdown();

 private:
  // False after a failure.
  bool Check();

  const GetEngineStats stats_;
  const OnFailure on_failure_;
  std::mutex mutex_;
  StepWatch watch_;
  std::atomic<bool> is_shutdown_expected_ = false;
  PeriodicThread thread_;  // last: uses the members above
};

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_WATCHDOG_H_
