// Whether the gRPC port answers, found out as a client does: by calls through the port itself.
#ifndef LSSAR_SERVER_OPS_PORT_PROBE_H_
#define LSSAR_SERVER_OPS_PORT_PROBE_H_

#include <chrono>
#include <functional>
#include <mutex>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/periodic_thread.h"
#include "server/ops/watched_time.h"

namespace lssar {

// Derives from probes whether a port answers. It did when this was constructed.
class PortWatch {
 public:
  // `max_age`: a port that has not answered for longer does not answer.
  // `max_gap`: of WatchedTime; each function is a look.
  PortWatch(Clock::duration max_age, Clock::duration max_gap, Clock::time_point now)
      : max_age_(max_age), time_(max_gap, now) {}

  void BeginProbe(Clock::time_point now) { silent_for_ += time_.Look(now); }
  void EndProbe(absl::Status status, Clock::time_point now);
  // Errors  UNAVAILABLE: what the last probe said
  absl::Status Check(Clock::time_point now);

 private:
  const Clock::duration max_age_;
  WatchedTime time_;
  Clock::duration silent_for_ = {};  // since a probe has succeeded
  absl::Status last_;
};

// Probes every `interval` on a thread of its own, so that asking for the result never waits. The
// destructor waits for a running probe.
class PortProbe {
 public:
  // OK: the port answered. Blocks; must end within a few seconds.
  using Probe = std::function<absl::Status()>;

  explicit PortProbe(Probe probe, Clock::duration interval = std::chrono::seconds(1),
                     Clock::duration max_age = std::chrono::seconds(5));

  // PortWatch's.
  absl::Status Check();

 private:
  void Run();

  const Probe probe_;
  std::mutex mutex_;
  PortWatch watch_;
  PeriodicThread thread_;  // last: uses the members above
};

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_PORT_PROBE_H_
