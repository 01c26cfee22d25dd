#include "clients/cli/retry_delay.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace lssar::cli {

std::optional<std::chrono::microseconds> RetryDelay(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& detail : details.details()) {
    google::rpc::RetryInfo retry;
    if (!detail.UnpackTo(&retry)) continue;
    return std::chrono::seconds(retry.retry_delay().seconds()) +
           std::chrono::microseconds(retry.retry_delay().nanos() / 1000);
  }
  return std::nullopt;
}

}  // namespace lssar::cli
