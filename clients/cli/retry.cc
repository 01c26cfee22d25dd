#include "clients/cli/retry.h"

#include <algorithm>
#include <cstdint>

#include "base/error_details.h"

namespace lssar::cli {

using std::chrono::microseconds;

std::optional<microseconds> Attempts::WaitAfter(const absl::Status& status, double draw) {
  microseconds wait{0};
  if (absl::IsResourceExhausted(status)) {
    const auto delay = StatedRetryDelay(status);
    if (!delay || *delay > kMaxRetryDelay) return std::nullopt;
    wait = std::chrono::duration_cast<microseconds>(*delay);
  } else if (absl::IsUnavailable(status)) {
    if (++num_unavailable_ == kMaxUnavailable) return std::nullopt;
  } else {
    return std::nullopt;
  }
  wait += microseconds(int64_t(draw * double(backoff_.count())));
  backoff_ = std::min<microseconds>(2 * backoff_, kMaxBackoff);
  waits_ += wait;
  if (waits_ > kMaxWaits) return std::nullopt;
  return wait;
}

}  // namespace lssar::cli
