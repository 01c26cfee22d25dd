#include "base/error_details.h"

#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// Type of the status payload that holds the delay in nanoseconds.
constexpr char kDelayUrl[] = "lssar/retry_delay_ns";
constexpr char kNeverUrl[] = "lssar/never_retry";
constexpr char kReasonUrl[] = "lssar/error_reason";

}  // namespace

absl::Status LimitError(std::string_view reason, const std::string& message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  SetErrorReason(reason, &status);
  return status;
}

absl::Status RetryAfter(std::string_view reason, std::chrono::nanoseconds delay,
                        const std::string& message) {
  absl::Status status = LimitError(reason, message);
  SetRetryDelay(delay, &status);
  return status;
}

absl::Status NeverRetry(std::string_view reason, const std::string& message) {
  absl::Status status = LimitError(reason, message);
  status.SetPayload(kNeverUrl, absl::Cord());
  return status;
}

bool MayRetry(const absl::Status& status) { return !status.GetPayload(kNeverUrl); }

void SetRetryDelay(std::chrono::nanoseconds delay, absl::Status* status) {
  status->SetPayload(kDelayUrl, absl::Cord(StrCat(delay.count())));
}

std::optional<std::chrono::nanoseconds> StatedRetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kDelayUrl);
  int64_t delay_ns = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &delay_ns)) return std::nullopt;
  return std::chrono::nanoseconds(delay_ns);
}

absl::Duration RetryDelay(const absl::Status& status) {
  const auto delay = StatedRetryDelay(status);
  return delay ? absl::FromChrono(*delay) : kDefaultRetryDelay;
}

void SetErrorReason(std::string_view reason, absl::Status* status) {
  status->SetPayload(kReasonUrl, absl::Cord(absl::string_view(reason.data(), reason.size())));
}

std::string ErrorReason(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonUrl);
  return payload ? std::string(*payload) : "";
}

absl::Status WithMessage(const absl::Status& status, std::string_view message) {
  absl::Status other(status.code(), absl::string_view(message.data(), message.size()));
  status.ForEachPayload([&other](absl::string_view url, const absl::Cord& payload) {
    other.SetPayload(url, payload);
  });
  return other;
}

absl::Status WithPrefix(std::string_view prefix, const absl::Status& status) {
  return WithMessage(status, StrCat(prefix, status.message()));
}

}  // namespace lssar
