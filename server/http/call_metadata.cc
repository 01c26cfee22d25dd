#include "server/http/call_metadata.h"

#include <chrono>
#include <string>

#include "absl/strings/numbers.h"
#include "base/quote.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr double kMaxTimeoutSeconds = 86400;

}  // namespace

absl::StatusOr<std::optional<Clock::duration>> ReadTimeout(const HttpRequest& request) {
  const std::string text = request.Headers("x-request-timeout");
  if (text.empty()) return std::optional<Clock::duration>();
  double seconds = 0;
  if (!absl::SimpleAtod({text.data(), text.size()}, &seconds) ||
      !(seconds > 0 && seconds <= kMaxTimeoutSeconds)) {
    return absl::InvalidArgumentError(StrCat("the header X-Request-Timeout is ", Quote(text),
                                             "; it must be seconds in (0, ",
                                             int(kMaxTimeoutSeconds), "]"));
  }
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string AuthorizationOf(const HttpRequest& request) {
  const std::string_view authorization = request.Header("authorization");
  const std::string_view key = request.Header("x-api-key");
  if (authorization.empty() && !key.empty()) return StrCat("Bearer ", key);
  return std::string(authorization);
}

CallMetadata ReadHttpMetadata(std::string_view rpc, std::string_view route,
                              std::optional<CallKind> kind, const HttpRequest& request) {
  CallMetadata metadata{
      .rpc = rpc,
      .kind = kind,
      .request_id = std::string(request.Header("x-request-id")),
      .traceparent = std::string(request.Header("traceparent")),
      .authorization = AuthorizationOf(request),
      .peer = request.peer,
      .forwarded_for = request.Headers("x-forwarded-for"),
      .caller = request.caller,
      .is_batch_row = request.is_batch_row,
      .http =
          HttpPath{.method = request.method, .path = std::string(request.Path()), .route = route}};
  if (const auto timeout = ReadTimeout(request); timeout.ok() && *timeout) {
    metadata.deadline = Clock::now() + **timeout;
  }
  return metadata;
}

}  // namespace lssar
