// The one place where absl::Status becomes gRPC's.
#ifndef LSSAR_SERVER_GRPC_STATUS_H_
#define LSSAR_SERVER_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <chrono>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lssar {

// When a refused request is worth sending again, where nothing better is known.
inline constexpr absl::Duration kRetryDelay = absl::Milliseconds(500);

// RESOURCE_EXHAUSTED that is over after `wait`.
absl::Status ExhaustedFor(std::chrono::nanoseconds wait, const std::string& message);

// Same code, same message. RESOURCE_EXHAUSTED carries google.rpc.RetryInfo in its details: the wait
// of ExhaustedFor, or kRetryDelay.
grpc::Status ToGrpcStatus(const absl::Status& status);

// "INVALID_ARGUMENT": for logs.
std::string_view NameOf(grpc::StatusCode code);

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_STATUS_H_
