#include "server/grpc_status.h"

#include <array>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/str_cat.h"

namespace lssar {
namespace {

// Of the payload that holds how many nanoseconds to wait.
constexpr char kWaitUrl[] = "lssar/wait_ns";

absl::Duration RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kWaitUrl);
  int64_t wait_ns = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &wait_ns)) return kRetryDelay;
  return absl::Nanoseconds(wait_ns);
}

std::string RetryDetails(const absl::Status& status) {
  const absl::Duration delay = RetryDelay(status);
  const int64_t seconds = absl::ToInt64Seconds(delay);
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(seconds);
  retry.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(delay - absl::Seconds(seconds))));
  google::rpc::Status details;
  details.set_code(static_cast<int32_t>(status.code()));
  details.set_message(std::string(status.message()));
  details.add_details()->PackFrom(retry);
  return details.SerializeAsString();
}

}  // namespace

absl::Status ExhaustedFor(std::chrono::nanoseconds wait, const std::string& message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kWaitUrl, absl::Cord(StrCat(wait.count())));
  return status;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // Both enumerations are the canonical codes.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (absl::IsResourceExhausted(status)) {
    return {code, std::string(status.message()), RetryDetails(status)};
  }
  return {code, std::string(status.message())};
}

std::string_view NameOf(grpc::StatusCode code) {
  static constexpr std::array<std::string_view, 17> kNames = {"OK",
                                                              "CANCELLED",
                                                              "UNKNOWN",
                                                              "INVALID_ARGUMENT",
                                                              "DEADLINE_EXCEEDED",
                                                              "NOT_FOUND",
                                                              "ALREADY_EXISTS",
                                                              "PERMISSION_DENIED",
                                                              "RESOURCE_EXHAUSTED",
                                                              "FAILED_PRECONDITION",
                                                              "ABORTED",
                                                              "OUT_OF_RANGE",
                                                              "UNIMPLEMENTED",
                                                              "INTERNAL",
                                                              "UNAVAILABLE",
                                                              "DATA_LOSS",
                                                              "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "UNKNOWN";
}

}  // namespace lssar
