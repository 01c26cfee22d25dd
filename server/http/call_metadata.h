// What an HTTP request's headers say about its call.
#ifndef LSSAR_SERVER_HTTP_CALL_METADATA_H_
#define LSSAR_SERVER_HTTP_CALL_METADATA_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/api/call_context.h"
#include "server/http/http_message.h"

namespace lssar {

// The header X-Request-Timeout: seconds that the whole call may take, in (0, 86400], such as 2.5.
// It counts from the end of the request's body. Nullopt: the request has none.
// Errors  INVALID_ARGUMENT: not such a number
absl::StatusOr<std::optional<Clock::duration>> ReadTimeout(const HttpRequest& request);

// "Bearer KEY" of the header Authorization, or of x-api-key, which Anthropic's clients send; empty:
// neither is there.
std::string AuthorizationOf(const HttpRequest& request);

// X-Request-Id, Traceparent, the API key and X-Request-Timeout. A timeout that is no number
// counts as none: HttpServer refuses it before. `rpc` and `route`: static storage.
CallMetadata ReadHttpMetadata(std::string_view rpc, std::string_view route,
                              std::optional<CallKind> kind, const HttpRequest& request);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_CALL_METADATA_H_
