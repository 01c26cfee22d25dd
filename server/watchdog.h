// Tells when the engine has died or hangs.
#ifndef LSSAR_SERVER_WATCHDOG_H_
#define LSSAR_SERVER_WATCHDOG_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine.h"

namespace lssar {

struct EngineFailure {
  absl::Status status;                            // UNAVAILABLE: for clients and probes
  std::optional<Clock::duration> stuck_for = {};  // how long its step has run; nullopt: it died
  bool is_device_lost = false;                    // of what it died
};

// What the engine's statistics say, looked at again and again.
class StepWatch {
 public:
  // `step_timeout`: that long a step may take; zero: as long as it likes.
  // `max_gap`: of the time between two looks no more than this counts. What passes while the
  // process itself stands still (stopped, its machine suspended) is not the engine's fault.
  StepWatch(Clock::duration step_timeout, Clock::duration max_gap)
      : step_timeout_(step_timeout), max_gap_(max_gap) {}

  // Nullopt: all is well.
  std::optional<EngineFailure> Look(const EngineStats& stats, Clock::time_point now);

 private:
  const Clock::duration step_timeout_, max_gap_;
  Clock::time_point step_started_at_ = {};  // of the step under way; the epoch: none is
  Clock::time_point last_look_at_ = {};
  Clock::duration watched_ = {};  // of the step under way
};

// A thread that looks, until there is a failure to tell.
class Watchdog {
 public:
  using GetEngineStats = std::function<EngineStats()>;
  using OnFailure = std::function<void(const EngineFailure&)>;

  // `on_failure` is called at most once, on the watchdog's thread; `stats` is asked eight times per
  // `step_timeout`, but at least once and at most a hundred times a second.
  Watchdog(absl::Duration step_timeout, GetEngineStats stats, OnFailure on_failure);
  ~Watchdog();  // waits for an `on_failure` under way

  // From now on an engine that serves no more is no failure: it was told to.
  void ExpectEnd();

 private:
  void Run(absl::Duration step_timeout);
  // False: the watchdog ends.
  bool WaitUntilNextLook(absl::Duration interval);

  const GetEngineStats stats_;
  const OnFailure on_failure_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false;
  bool is_end_expected_ = false;
  std::thread thread_;  // last: it uses all of the others
};

}  // namespace lssar

#endif  // LSSAR_SERVER_WATCHDOG_H_
