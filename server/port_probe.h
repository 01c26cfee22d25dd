// Whether the gRPC port answers, found out as a client does: by calls through the port itself.
#ifndef LSSAR_SERVER_PORT_PROBE_H_
#define LSSAR_SERVER_PORT_PROBE_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "runtime/clock.h"

namespace lssar {

// Probes every second on a thread of its own, so that asking for the result never waits.
class PortProbe {
 public:
  // OK: the port answered. Blocks; must end within a few seconds.
  using Probe = std::function<absl::Status()>;

  explicit PortProbe(Probe probe);
  ~PortProbe();  // waits for a running probe

  // OK if a probe has succeeded within the last 5 s, or if the first one is not due yet.
  // Errors  UNAVAILABLE: what the last probe said
  absl::Status Check() const;

 private:
  void Run();

  const Probe probe_;
  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  bool is_stopping_ = false;
  Clock::time_point succeeded_at_ = Clock::now();
  absl::Status last_;
  std::thread thread_;  // last: uses the members above
};

}  // namespace lssar

#endif  // LSSAR_SERVER_PORT_PROBE_H_
