// What a status tells the client beside its code and message: when to ask again, and why the server
// refused in a form for programs.
#ifndef LSSAR_BASE_ERROR_DETAILS_H_
#define LSSAR_BASE_ERROR_DETAILS_H_

#include <chrono>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lssar {

// Used where the server cannot tell when the limit will allow another request.
inline constexpr absl::Duration kDefaultRetryDelay = absl::Milliseconds(500);

// The domain of the reasons in google.rpc.ErrorInfo.
inline constexpr char kErrorDomain[] = "lssar";
// The server has not loaded its model yet.
inline constexpr char kModelLoading[] = "MODEL_LOADING";

// RESOURCE_EXHAUSTED; the limit allows the request again after `delay`.
absl::Status RetryAfter(std::chrono::nanoseconds delay, const std::string& message);

// RESOURCE_EXHAUSTED; the limit never allows the request.
absl::Status NeverRetry(const std::string& message);
bool MayRetry(const absl::Status& status);

// The delay given to RetryAfter, else kDefaultRetryDelay. gRPC sends it as google.rpc.RetryInfo,
// HTTP as Retry-After.
absl::Duration RetryDelay(const absl::Status& status);

// One of the constants above; gRPC sends it as google.rpc.ErrorInfo.
void SetErrorReason(std::string_view reason, absl::Status* status);
// Empty without one.
std::string ErrorReason(const absl::Status& status);

}  // namespace lssar

#endif  // LSSAR_BASE_ERROR_DETAILS_H_
