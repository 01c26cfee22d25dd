// When a call that failed is made again. The rules are those of the Python client's Retry, but
// commands that run unattended wait longer in all.
#ifndef LSSAR_CLIENTS_CLI_RETRY_H_
#define LSSAR_CLIENTS_CLI_RETRY_H_

#include <chrono>
#include <optional>

#include "absl/status/status.h"

namespace lssar::cli {

// The attempts of one call.
class Attempts {
 public:
  static constexpr int kMaxUnavailable = 6;
  // Where the server asks for a longer wait, the call fails.
  static constexpr std::chrono::seconds kMaxRetryDelay{60};
  static constexpr std::chrono::minutes kMaxWaits{10};  // together

  // The wait before the next attempt; nullopt: there is none. RESOURCE_EXHAUSTED is repeated only
  // if the server named a wait (StatedRetryDelay): gRPC has the same code for a reply that is too
  // large.
  // `draw` in [0, 1]: what part of the backoff is waited, so that clients do not come back together
  std::optional<std::chrono::microseconds> WaitAfter(const absl::Status& status, double draw);

 private:
  static constexpr std::chrono::milliseconds kFirstBackoff{200};
  static constexpr std::chrono::seconds kMaxBackoff{10};

  std::chrono::microseconds backoff_ = kFirstBackoff;
  std::chrono::microseconds waits_{0};
  int num_unavailable_ = 0;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_RETRY_H_
