// Whether the gRPC port answers, found out as a client does: by calls through the port itself.
#ifndef LSSAR_SERVER_OPS_PORT_PROBE_H_
#define LSSAR_SERVER_OPS_PORT_PROBE_H_

#include <chrono>
#include <functional>
#include <mutex>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/periodic_thread.h"

namespace lssar {

// Probes every `interval` on a thread of its own, so that asking for the result never waits. The
// destructor waits for a running probe.
class PortProbe {
 public:
  // OK: the port answered. Blocks; must end within a few seconds.
  using Probe = std::function<absl::Status()>;

  explicit PortProbe(Probe probe, Clock::duration interval = std::chrono::seconds(1),
                     Clock::duration max_age = std::chrono::seconds(5));

  // OK if a probe has succeeded, or this was constructed, at most `max_age` ago.
  // Errors  UNAVAILABLE: what the last probe said
  absl::Status Check() const;

 private:
  void Run();

  const Probe probe_;
  const Clock::duration max_age_;
  mutable std::mutex mutex_;
  Clock::time_point succeeded_at_ = Clock::now();
  absl::Status last_;
  PeriodicThread thread_;  // last: uses the members above
};

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_PORT_PROBE_H_
