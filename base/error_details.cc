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
  status.SetPayload(kDelayUrl, absl::Cord(StrCat(delay.count())));
  return status;
}

absl::Status NeverRetry(std::string_view reason, const std::string& message) {
  absl::Status status = LimitError(reason, message);
  status.SetPayload(kNeverUrl, absl::Cord());
  return status;
}

bool MayRetry(const absl::Status& status) { return !status.GetPayload(kNeverUrl); }

absl::Duration RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kDelayUrl);
  int64_t delay_ns = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &delay_ns)) return kDefaultRetryDelay;
  return absl::Nanoseconds(delay_ns);
}

void SetErrorReason(std::string_view reason, absl::Status* status) {
  status->SetPayload(kReasonUrl, absl::Cord(absl::string_view(reason.data(), reason.size())));
}

std::string ErrorReason(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonUrl);
  return payload ? std::string(*payload) : "";
}

}  // namespace lssar
