#include "server/http/http_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "base/error_details.h"
#include "base/field_error.h"
#include "base/str_cat.h"
#include "server/config/limits.h"
#include "server/http/json_text.h"

namespace lssar {
namespace {

std::string_view TypeOf(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string_view CodeOf(int status) {
  switch (status) {
    case 307: return "redirected";
    case 401: return "invalid_api_key";
    case 403: return "permission_denied";
    case 404: return "not_found";
    case 405: return "method_not_allowed";
    case 408: return "request_timeout";
    case 413: return "request_too_large";
    case 415: return "unsupported_media_type";
    case 429: return "rate_limit_exceeded";
    case 431: return "headers_too_large";
    case 499: return "client_closed_request";
    case 501: return "not_implemented";
    case 503: return "service_unavailable";
    case 504: return "deadline_exceeded";
    default: return status < 500 ? "invalid_request" : "internal_error";
  }
}

std::string ErrorBody(int status, std::string_view message, std::string_view field,
                      std::string_view code) {
  std::string json = "{\"error\":{\"message\":";
  AppendJsonString(Shorten(message, limits::kMaxErrorBytes), &json);
  json += StrCat(",\"type\":\"", TypeOf(status), "\",\"param\":");
  if (field.empty()) {
    json += "null";
  } else {
    AppendJsonString(Shorten(field, limits::kMaxErrorBytes), &json);
  }
  json += StrCat(",\"code\":\"", code.empty() ? CodeOf(status) : code, "\"}}");
  return json;
}

std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

std::string_view SpecialCode(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  if (reason == error_reason::kModelNotFound) return "model_not_found";
  // Clients cut the history or take another model by this one.
  return reason == error_reason::kContextLength ? "context_length_exceeded" : "";
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange: return 400;
    case absl::StatusCode::kUnauthenticated: return 401;
    case absl::StatusCode::kPermissionDenied: return 403;
    case absl::StatusCode::kNotFound: return 404;
    case absl::StatusCode::kResourceExhausted: return 429;
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted: return 499;
    case absl::StatusCode::kUnimplemented: return 501;
    case absl::StatusCode::kUnavailable: return 503;
    case absl::StatusCode::kDeadlineExceeded: return 504;
    default: return 500;
  }
}

HttpReply ErrorReply(const absl::Status& status) {
  const int code = HttpStatusOf(status);
  HttpReply reply{.status = code, .body = ErrorJson(status)};
  if (code == 401) reply.headers.push_back({"WWW-Authenticate", "Bearer"});
  if (code == 429 || code == 503) {
    // Whole seconds, rounded up; OpenAI's clients also read the exact time.
    const int64_t wait_ms = std::max<int64_t>(
        1, absl::ToInt64Milliseconds(absl::Ceil(RetryDelay(status), absl::Milliseconds(1))));
    reply.headers.push_back({"Retry-After", StrCat((wait_ms + 999) / 1000)});
    reply.headers.push_back({"Retry-After-Ms", StrCat(wait_ms)});
    // OpenAI's clients obey it.
    if (!MayRetry(status)) reply.headers.push_back({"X-Should-Retry", "false"});
  }
  return reply;
}

HttpReply ErrorReply(int status, std::string_view message, std::string_view code) {
  return {.status = status, .body = ErrorBody(status, message, "", code)};
}

HttpReply InShapeOf(std::string_view path, HttpReply reply) {
  constexpr std::string_view kMessages = "/v1/messages";
  if (!path.starts_with(kMessages)) return reply;
  if (path.size() > kMessages.size() && path[kMessages.size()] != '/') return reply;
  const nlohmann::json body = nlohmann::json::parse(reply.body);
  const auto type = [&]() -> std::string_view {
    switch (reply.status) {
      case 401: return "authentication_error";
      case 403: return "permission_error";
      case 404: return "not_found_error";
      case 413: return "request_too_large";
      case 429: return "rate_limit_error";
      case 503: return "overloaded_error";
      case 504: return "timeout_error";
      default: return reply.status < 500 ? "invalid_request_error" : "api_error";
    }
  };
  // ErrorJson's own text.
  const auto message = body.at("error").at("message").get<std::string>();
  const std::string field = body.at("error").at("param").dump();
  reply.body = StrCat("{\"type\":\"error\",\"error\":{\"type\":\"", type(),
                      "\",\"message\":", JsonString(message), ",\"param\":", field, "}}");
  return reply;
}

std::string ErrorJson(const absl::Status& status) {
  const bool is_model = ErrorReason(status) == error_reason::kModelNotFound;
  return ErrorBody(HttpStatusOf(status), MessageOf(status),
                   is_model ? "model" : FieldProblemOf(status).path, SpecialCode(status));
}

}  // namespace lssar
