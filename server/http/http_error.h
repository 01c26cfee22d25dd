// Errors in OpenAI's shape. The one place where absl::Status becomes HTTP's.
#ifndef LSSAR_SERVER_HTTP_HTTP_ERROR_H_
#define LSSAR_SERVER_HTTP_HTTP_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/http/http_message.h"

namespace lssar {

// INVALID_ARGUMENT -> 400, UNAUTHENTICATED -> 401, RESOURCE_EXHAUSTED -> 429, UNAVAILABLE -> 503...
int HttpStatusOf(const absl::Status& status);

// {"error": {"message", "type", "param", "code"}}. 401 carries WWW-Authenticate, 429 and 503 carry
// Retry-After.
HttpReply ErrorReply(const absl::Status& status);
// The same for errors of HTTP itself. `code`: empty: by the status.
HttpReply ErrorReply(int status, std::string_view message, std::string_view code = "");

// A reply of ErrorReply as the clients of `path` expect it. /v1/messages and what is below it are
// Anthropic's: {"type": "error", "error": {"type", "message", "param"}}.
HttpReply InShapeOf(std::string_view path, HttpReply reply);

// The error object alone, for an event of a stream.
std::string ErrorJson(const absl::Status& status);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_ERROR_H_
