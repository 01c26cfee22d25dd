#include "server/http_server.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "server/http/completion_call.h"
#include "server/http/embedding_call.h"
#include "server/http/http_error.h"
#include "server/http/http_transport.h"
#include "server/http/json_text.h"
#include "server/http/openapi.h"
#include "server/http/score_call.h"
#include "server/http/tokenizer_calls.h"
#include "server/http/worker_pool.h"

namespace lssar {
namespace {

constexpr int kNumWorkers = 2;
constexpr size_t kMaxQueuedRequests = 1024;

enum class Endpoint : uint8_t {
  kMetrics,
  kHealth,
  kReadiness,
  kOpenApi,
  kModels,
  kTokenizerInfo,
  kTokenize,
  kDetokenize,
  kCompletions,
  kChatCompletions,
  kScore,
  kEmbeddings,
};

struct Route {
  std::string_view method;  // of GET, HEAD is one too
  std::string_view path;
  Endpoint endpoint;
};

constexpr std::array kRoutes = std::to_array<Route>({
    {"POST", "/v1/completions", Endpoint::kCompletions},
    {"POST", "/v1/chat/completions", Endpoint::kChatCompletions},
    {"POST", "/v1/score", Endpoint::kScore},
    {"POST", "/v1/embeddings", Endpoint::kEmbeddings},
    {"GET", "/v1/models", Endpoint::kModels},
    {"POST", "/tokenize", Endpoint::kTokenize},
    {"POST", "/detokenize", Endpoint::kDetokenize},
    {"GET", "/tokenizer_info", Endpoint::kTokenizerInfo},
    {"GET", "/openapi.json", Endpoint::kOpenApi},
    {"GET", "/metrics", Endpoint::kMetrics},
    {"GET", "/healthz", Endpoint::kHealth},
    {"GET", "/readyz", Endpoint::kReadiness},
});

constexpr std::string_view kModelsPrefix = "/v1/models/";

// Null: there is no such path.
const Route* FindRoute(std::string_view path) {
  if (path.starts_with(kModelsPrefix) && path.size() > kModelsPrefix.size()) path = "/v1/models";
  const auto found = std::ranges::find(kRoutes, path, &Route::path);
  return found == kRoutes.end() ? nullptr : &*found;
}

bool Allows(const Route& route, std::string_view method) {
  return method == route.method || (route.method == "GET" && method == "HEAD");
}

std::string AllowedMethods(const Route& route) {
  return StrCat(route.method, route.method == "GET" ? ", HEAD" : "", ", OPTIONS");
}

std::string PathList() {
  std::string list;
  for (const Route& route : kRoutes) {
    if (!list.empty()) list += ", ";
    list += StrCat(route.method, " ", route.path);
  }
  return list;
}

HttpReply TextReply(const absl::Status& status) {
  return {.status = status.ok() ? 200 : 503,
          .body = status.ok() ? "ok\n" : StrCat(status.message(), "\n"),
          .content_type = "text/plain; charset=utf-8"};
}

}  // namespace

struct HttpServer::State final : public HttpHandler {
  State(const ServerOptions& server_options, HttpPages given_pages, const ServiceParts& given_parts)
      : options(server_options), pages(std::move(given_pages)), parts(given_parts) {}

  std::optional<HttpReply> CheckHead(const HttpRequest& head) override;
  void OnRequest(std::shared_ptr<HttpExchange> exchange) override;
  HttpReply ErrorReply(int status, std::string message) override {
    return lssar::ErrorReply(status, message);
  }

  void AddCorsHeaders(HttpExchange& exchange) const;
  HttpReply Preflight(const Route& route, const HttpRequest& request) const;
  HttpReply MetricsPage(const HttpRequest& request) const;
  // A call that the engine has no part in. Worker thread.
  void AnswerUnary(Endpoint endpoint, HttpExchange& exchange);
  absl::StatusOr<std::string> UnaryBody(Endpoint endpoint, const HttpRequest& request,
                                        const ServedModel& model) const;
  void Work(Endpoint endpoint, const std::shared_ptr<HttpExchange>& exchange);

  const ServerOptions options;
  const HttpPages pages;
  const ServiceParts parts;
  const int64_t started_at = std::time(nullptr);
  // The workers end first: they answer through the transport.
  std::unique_ptr<HttpTransport> transport;
  std::unique_ptr<WorkerPool> workers;
};

// The part of a request's check that needs no body. Called again for requests without one.
std::optional<HttpReply> HttpServer::State::CheckHead(const HttpRequest& head) {
  const Route* route = FindRoute(head.Path());
  if (route == nullptr) {
    return lssar::ErrorReply(
        404, StrCat("there is no ", head.method, " ", head.Path(), "; there are ", PathList()));
  }
  if (head.method != "OPTIONS" && !Allows(*route, head.method)) {
    HttpReply reply = lssar::ErrorReply(
        405, StrCat(head.method, " ", route->path, ": the path takes ", AllowedMethods(*route)));
    reply.headers.push_back({"Allow", AllowedMethods(*route)});
    return reply;
  }
  if (head.method == "POST") {
    const std::string_view type = head.Header("content-type");
    const std::string_view media = type.substr(0, type.find(';'));
    // curl's default is let through: only a type that says something else is refused.
    if (media.starts_with("multipart/") || media.starts_with("image/") ||
        media.starts_with("audio/")) {
      return lssar::ErrorReply(415, StrCat("Content-Type ", media, ": send application/json"));
    }
  }
  return std::nullopt;
}

void HttpServer::State::AddCorsHeaders(HttpExchange& exchange) const {
  const std::string_view origin = exchange.Request().Header("origin");
  if (options.http_cors_origins.empty()) return;
  exchange.AddHeader("Vary", "Origin");
  const auto& allowed = options.http_cors_origins;
  const bool is_allowed = std::ranges::find(allowed, "*") != allowed.end() ||
                          std::ranges::find(allowed, origin) != allowed.end();
  if (origin.empty() || !is_allowed) return;
  exchange.AddHeader("Access-Control-Allow-Origin", std::string(origin));
  exchange.AddHeader("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

HttpReply HttpServer::State::Preflight(const Route& route, const HttpRequest& request) const {
  HttpReply reply{.status = 204, .body = "", .headers = {{"Allow", AllowedMethods(route)}}};
  if (!options.http_cors_origins.empty() && !request.Header("origin").empty()) {
    reply.headers.push_back({"Access-Control-Allow-Methods", AllowedMethods(route)});
    reply.headers.push_back(
        {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id, Traceparent"});
    reply.headers.push_back({"Access-Control-Max-Age", "600"});
  }
  return reply;
}

HttpReply HttpServer::State::MetricsPage(const HttpRequest& request) const {
  const absl::Status status = pages.check_admin(std::string(request.Header("authorization")));
  if (!status.ok()) return lssar::ErrorReply(status);
  return {.status = 200,
          .body = pages.metrics(),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

void HttpServer::State::OnRequest(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->Request();
  AddCorsHeaders(*exchange);
  if (auto refusal = CheckHead(request)) {
    exchange->Reply(*std::move(refusal));
    return;
  }
  const Route& route = *FindRoute(request.Path());
  if (request.method == "OPTIONS") {
    exchange->Reply(Preflight(route, request));
    return;
  }
  switch (route.endpoint) {
    case Endpoint::kMetrics: exchange->Reply(MetricsPage(request)); return;
    case Endpoint::kHealth: exchange->Reply(TextReply(pages.health())); return;
    case Endpoint::kReadiness: exchange->Reply(TextReply(pages.readiness())); return;
    case Endpoint::kOpenApi:
      exchange->Reply({.status = 200, .body = std::string(OpenApiJson())});
      return;
    default: break;
  }
  const bool is_queued =
      workers->TrySubmit([this, endpoint = route.endpoint, exchange] { Work(endpoint, exchange); });
  if (!is_queued) {
    exchange->Reply(lssar::ErrorReply(absl::ResourceExhaustedError(
        StrCat("the server has ", kMaxQueuedRequests, " requests to read; try again"))));
  }
}

void HttpServer::State::Work(Endpoint endpoint, const std::shared_ptr<HttpExchange>& exchange) {
  switch (endpoint) {
    case Endpoint::kCompletions:
    case Endpoint::kChatCompletions:
      std::make_shared<CompletionCall>(endpoint == Endpoint::kChatCompletions, exchange, parts)
          ->Start();
      return;
    case Endpoint::kScore: std::make_shared<HttpScoreCall>(exchange, parts)->Start(); return;
    case Endpoint::kEmbeddings:
      std::make_shared<HttpEmbeddingCall>(exchange, parts)->Start();
      return;
    default: AnswerUnary(endpoint, *exchange);
  }
}

void HttpServer::State::AnswerUnary(Endpoint endpoint, HttpExchange& exchange) {
  const HttpRequest& request = exchange.Request();
  const auto route = std::ranges::find(kRoutes, endpoint, &Route::endpoint);
  CallContext context({.rpc = route->path,
                       .request_id = std::string(request.Header("x-request-id")),
                       .traceparent = std::string(request.Header("traceparent")),
                       .authorization = std::string(request.Header("authorization"))},
                      parts);
  exchange.AddHeader("X-Request-Id", context.RequestId());
  exchange.AddHeader("Traceparent", context.Traceparent());
  absl::Status status = context.Admit(KeyRole::kUser);
  absl::StatusOr<std::string> body;
  if (status.ok()) {
    body = UnaryBody(endpoint, request, context.Model());
    status = body.status();
  }
  context.End(status);
  if (status.ok()) {
    exchange.Reply({.status = 200, .body = *std::move(body)});
  } else {
    exchange.Reply(lssar::ErrorReply(status));
  }
}

absl::StatusOr<std::string> HttpServer::State::UnaryBody(Endpoint endpoint,
                                                         const HttpRequest& request,
                                                         const ServedModel& model) const {
  if (endpoint == Endpoint::kTokenizerInfo) {
    return TokenizerInfoJson(model, options.model.directory);
  }
  if (endpoint == Endpoint::kModels) {
    const std::string_view path = request.Path();
    if (!path.starts_with(kModelsPrefix)) {
      return StrCat("{\"object\":\"list\",\"data\":[", ModelJson(model, started_at), "]}");
    }
    const std::string_view name = path.substr(kModelsPrefix.size());
    if (name != model.GetCheckpoint().name) {
      return ModelNotFound(name, model.GetCheckpoint().name);
    }
    return ModelJson(model, started_at);
  }
  ASSIGN_OR_RETURN(const nlohmann::json body, ParseJson(request.body));
  return endpoint == Endpoint::kTokenize ? TokenizeJson(body, model) : DetokenizeJson(body, model);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Open(const ServerOptions& options,
                                                             HttpPages pages,
                                                             const ServiceParts& parts) {
  std::unique_ptr<TlsContext> tls;
  if (options.tls.HasTls()) {
    ASSIGN_OR_RETURN(tls, TlsContext::Open(options.tls));
  }
  auto state = std::make_unique<State>(options, std::move(pages), parts);
  state->workers = std::make_unique<WorkerPool>(kNumWorkers, kMaxQueuedRequests);
  TransportOptions transport;
  transport.listen = options.http_listen;
  const ConnectionOptions& connection = options.connection;
  transport.limits = {.max_connections = connection.max_connections,
                      .max_connections_per_address = connection.max_connections_per_address,
                      .metrics = parts.metrics == nullptr ? nullptr : &parts.metrics->HttpPort()};
  transport.log = parts.log;
  transport.handshake_timeout = absl::ToChronoMilliseconds(connection.handshake_timeout);
  transport.buffer_bytes = options.stream.buffer_bytes;
  transport.client_timeout = absl::ToChronoMilliseconds(options.stream.client_timeout);
  ASSIGN_OR_RETURN(state->transport, HttpTransport::Open(transport, std::move(tls), state.get()));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  // The port first: no request comes any more, and none hears of what the workers still do.
  state_->transport.reset();
  state_->workers.reset();
}

int HttpServer::Port() const { return state_->transport->Port(); }

}  // namespace lssar
