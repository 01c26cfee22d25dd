// What a status tells the client beside its code and message: when to ask again, and why the server
// refused in a form for programs.
#ifndef LSSAR_BASE_ERROR_DETAILS_H_
#define LSSAR_BASE_ERROR_DETAILS_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lssar {

// Used where the server cannot tell when the limit will allow another request.
inline constexpr absl::Duration kDefaultRetryDelay = absl::Milliseconds(500);

// The domain of the reasons in google.rpc.ErrorInfo.
inline constexpr char kErrorDomain[] = "lssar";
namespace error_reason {
// The server has not loaded its model yet.
inline constexpr std::string_view kModelLoading = "MODEL_LOADING";
// NOT_FOUND: the call names a model that the server does not serve.
inline constexpr std::string_view kModelNotFound = "MODEL_NOT_FOUND";
// INVALID_ARGUMENT: the prompt, or what it asks for behind it, is longer than the context.
inline constexpr std::string_view kContextLength = "CONTEXT_LENGTH_EXCEEDED";
// The limits that refuse a request now (OPERATIONS.md): of the server,
inline constexpr std::string_view kMaxCalls = "MAX_CALLS";
inline constexpr std::string_view kParseQueue = "PARSE_QUEUE";
inline constexpr std::string_view kQueuedRequests = "QUEUED_REQUESTS";
inline constexpr std::string_view kQueuedTokens = "QUEUED_TOKENS";
inline constexpr std::string_view kMemory = "MEMORY";  // of the requests or replies of all calls
inline constexpr std::string_view kConstraints = "CONSTRAINTS";  // that are compiled or kept
// and of a key, or of an address where there are no keys.
inline constexpr std::string_view kMaxConcurrent = "MAX_CONCURRENT";
inline constexpr std::string_view kMaxSequences = "MAX_SEQUENCES";
inline constexpr std::string_view kMaxQueued = "MAX_QUEUED";
inline constexpr std::string_view kRequestsPerMinute = "REQUESTS_PER_MINUTE";
inline constexpr std::string_view kTokensPerMinute = "TOKENS_PER_MINUTE";
}  // namespace error_reason

// RESOURCE_EXHAUSTED by one of these limits.
absl::Status LimitError(std::string_view reason, const std::string& message);

// The same; the limit allows the request again after `delay`.
absl::Status RetryAfter(std::string_view reason, std::chrono::nanoseconds delay,
                        const std::string& message);

// The same; the limit never allows the request.
absl::Status NeverRetry(std::string_view reason, const std::string& message);
bool MayRetry(const absl::Status& status);

// What RetryAfter notes in a status that is not OK, and what a client has read of its server.
void SetRetryDelay(std::chrono::nanoseconds delay, absl::Status* status);
// nullopt: none is noted.
std::optional<std::chrono::nanoseconds> StatedRetryDelay(const absl::Status& status);

// StatedRetryDelay, else kDefaultRetryDelay. gRPC sends it as google.rpc.RetryInfo,
// HTTP as Retry-After.
absl::Duration RetryDelay(const absl::Status& status);

// One of error_reason. gRPC sends it as google.rpc.ErrorInfo, and the line of the call in the log
// has it.
void SetErrorReason(std::string_view reason, absl::Status* status);
// Empty without one.
std::string ErrorReason(const absl::Status& status);

// `status` with another message, and with `prefix` before its own. Code and payloads stay.
absl::Status WithMessage(const absl::Status& status, std::string_view message);
absl::Status WithPrefix(std::string_view prefix, const absl::Status& status);

}  // namespace lssar

#endif  // LSSAR_BASE_ERROR_DETAILS_H_
