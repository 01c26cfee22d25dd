#include "clients/cli/retry.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "base/str_cat.h"

namespace lssar::cli {
namespace {

using std::chrono::microseconds;

// Type of the status payload that holds the delay in microseconds.
constexpr char kDelayUrl[] = "lssar/retry_delay_us";

}  // namespace

void SetRetryDelay(microseconds delay, absl::Status* status) {
  status->SetPayload(kDelayUrl, absl::Cord(StrCat(delay.count())));
}

std::optional<microseconds> RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kDelayUrl);
  int64_t delay_us = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &delay_us)) return std::nullopt;
  return microseconds(delay_us);
}

std::optional<microseconds> Attempts::WaitAfter(const absl::Status& status, double draw) {
  microseconds wait{0};
  if (absl::IsResourceExhausted(status)) {
    const auto delay = RetryDelay(status);
    if (!delay || *delay > kMaxRetryDelay) return std::nullopt;
    wait = *delay;
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
