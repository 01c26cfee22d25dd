// The retry delay that a RESOURCE_EXHAUSTED status carries to the client.
#ifndef LSSAR_SERVER_GRPC_RETRY_DELAY_H_
#define LSSAR_SERVER_GRPC_RETRY_DELAY_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lssar {

// Used where the server cannot tell when the limit will allow another request.
inline constexpr absl::Duration kDefaultRetryDelay = absl::Milliseconds(500);

// RESOURCE_EXHAUSTED; the limit allows the request again after `delay`.
absl::Status RetryAfter(std::chrono::nanoseconds delay, const std::string& message);

// RESOURCE_EXHAUSTED; the limit never allows the request.
absl::Status NeverRetry(const std::string& message);
bool MayRetry(const absl::Status& status);

// The delay given to RetryAfter, else kDefaultRetryDelay. gRPC sends it as google.rpc.RetryInfo,
// HTTP as Retry-After.
absl::Duration RetryDelay(const absl::Status& status);

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_RETRY_DELAY_H_
