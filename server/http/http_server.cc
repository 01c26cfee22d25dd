#include "server/http/http_server.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/config/security_warnings.h"
#include "server/http/attention_call.h"
#include "server/http/call_metadata.h"
#include "server/http/completion_call.h"
#include "server/http/cross_origin.h"
#include "server/http/embedding_call.h"
#include "server/http/http_error.h"
#include "server/http/http_transport.h"
#include "server/http/json_text.h"
#include "server/http/openapi.h"
#include "server/http/score_call.h"
#include "server/http/tokenizer_calls.h"
#include "server/http/unary_call.h"
#include "server/http/web_page.h"

namespace lssar {
namespace {

// Bytes of a path, or of a header, that an error repeats.
constexpr size_t kMaxShownBytes = 64;

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
  kAttention,
  kWebPage,
};

struct Route {
  std::string_view method;  // of GET, HEAD is one too
  std::string_view path;
  Endpoint endpoint;
  std::optional<CallKind> kind = {};  // set: the engine works for it

  // True if the path answers in every state of the server, without a call.
  bool IsPage() const {
    return endpoint == Endpoint::kMetrics || endpoint == Endpoint::kHealth ||
           endpoint == Endpoint::kReadiness || endpoint == Endpoint::kOpenApi ||
           endpoint == Endpoint::kWebPage;
  }
};

constexpr std::array kRoutes = std::to_array<Route>({
    {"POST", "/v1/completions", Endpoint::kCompletions, CallKind::kGenerate},
    {"POST", "/v1/chat/completions", Endpoint::kChatCompletions, CallKind::kGenerate},
    {"POST", "/v1/score", Endpoint::kScore, CallKind::kScore},
    {"POST", "/v1/embeddings", Endpoint::kEmbeddings, CallKind::kEmbed},
    {"POST", "/v1/attention", Endpoint::kAttention, CallKind::kCapture},
    {"GET", "/v1/models", Endpoint::kModels},
    {"POST", "/tokenize", Endpoint::kTokenize},
    {"POST", "/detokenize", Endpoint::kDetokenize},
    {"GET", "/tokenizer_info", Endpoint::kTokenizerInfo},
    {"GET", "/openapi.json", Endpoint::kOpenApi},
    {"GET", "/metrics", Endpoint::kMetrics},
    {"GET", "/healthz", Endpoint::kHealth},
    {"GET", "/readyz", Endpoint::kReadiness},
    {"GET", "/", Endpoint::kWebPage},
});

constexpr std::string_view kModelsPrefix = "/v1/models/";

// Null: there is no such path.
const Route* FindRoute(std::string_view path) {
  if (path.starts_with(kModelsPrefix) && path.size() > kModelsPrefix.size()) path = "/v1/models";
  if (IsWebPath(path)) path = "/";
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

// The call's name in the log line. Static storage.
std::string_view RpcName(const Route& route) {
  switch (route.endpoint) {
    case Endpoint::kCompletions: return "POST /v1/completions";
    case Endpoint::kChatCompletions: return "POST /v1/chat/completions";
    case Endpoint::kScore: return "POST /v1/score";
    case Endpoint::kEmbeddings: return "POST /v1/embeddings";
    case Endpoint::kAttention: return "POST /v1/attention";
    default: return route.path;
  }
}

HttpReply TextReply(const absl::Status& status) {
  return {.status = status.ok() ? 200 : 503,
          .body = status.ok() ? "ok\n" : StrCat(status.message(), "\n"),
          .content_type = "text/plain; charset=utf-8"};
}

// The reply of a call that the engine has no part in. Worker thread, maybe after the port's end.
// `created`: of the model, in seconds since 1970.
absl::StatusOr<std::string> UnaryBody(Endpoint endpoint, const HttpRequest& request,
                                      const CallContext& context, int64_t created) {
  const ServedModel& model = context.Model();
  if (endpoint == Endpoint::kTokenizerInfo) {
    return TokenizerInfoJson(model);
  }
  if (endpoint == Endpoint::kModels) {
    const std::string_view path = request.Path();
    if (!path.starts_with(kModelsPrefix)) {
      return StrCat("{\"object\":\"list\",\"data\":[", ModelJson(model, created), "]}");
    }
    const std::string_view name = path.substr(kModelsPrefix.size());
    if (name != model.GetCheckpoint().name) {
      return ModelNotFound(name, model.GetCheckpoint().name);
    }
    return ModelJson(model, created);
  }
  const ParseContext parse = context.MakeParseContext();
  ASSIGN_OR_RETURN(const nlohmann::json body, ParseJson(request.body, parse.should_stop));
  return endpoint == Endpoint::kTokenize ? TokenizeJson(body, parse) : DetokenizeJson(body, parse);
}

}  // namespace

struct HttpServer::State final : public HttpHandler {
  State(const ServerOptions& server_options, HttpPages given_pages, const ServiceParts& given_parts)
      : options(server_options),
        pages(std::move(given_pages)),
        parts(given_parts),
        cross_origin(options.http_cors_origins, /*checks_host=*/IsForThisMachine()) {}

  // No client comes from another machine, directly or through a proxy, and none needs a key.
  bool IsForThisMachine() const {
    return IsLoopback(options.http_listen) && options.api_keys.empty() &&
           options.connection.max_connections_per_address > 0;
  }

  std::optional<HttpReply> CheckHead(const HttpRequest& head) override;
  void OnRequest(std::shared_ptr<HttpExchange> exchange) override;
  HttpReply ErrorReply(int status, std::string message) override {
    return lssar::ErrorReply(status, message);
  }

  // The part of a request's check that needs no body. Nullopt: nothing is wrong.
  std::optional<HttpReply> Refusal(const HttpRequest& head) const;
  // Whether the call may be made at all: state of the server, API key, timeout. The admission
  // itself comes with the whole request. A call that is refused here has a log line, too.
  std::optional<HttpReply> CallRefusal(const Route& route, const HttpRequest& head) const;
  std::vector<HttpHeader> CorsHeaders(const HttpRequest& request) const;
  HttpReply Preflight(const Route& route, const HttpRequest& request) const;
  HttpReply MetricsPage(const HttpRequest& request) const;
  void StartCall(const Route& route, const std::shared_ptr<HttpExchange>& exchange);
  const ServerOptions options;
  const HttpPages pages;
  const ServiceParts parts;
  const CrossOriginCheck cross_origin;
  const int64_t started_at = std::time(nullptr);
  std::unique_ptr<HttpTransport> transport;
};

std::optional<HttpReply> HttpServer::State::CheckHead(const HttpRequest& head) {
  std::optional<HttpReply> refusal = Refusal(head);
  if (refusal) {
    for (HttpHeader& header : CorsHeaders(head)) refusal->headers.push_back(std::move(header));
  }
  return refusal;
}

std::optional<HttpReply> HttpServer::State::Refusal(const HttpRequest& head) const {
  // RFC 9112, section 3.2.
  if (const auto num_hosts = std::ranges::count(head.headers, "host", &HttpHeader::name);
      num_hosts > 1 || (num_hosts == 0 && !head.is_http_1_0)) {
    return lssar::ErrorReply(
        400, StrCat("the request has ", num_hosts, " Host headers; HTTP/1.1 asks for one"));
  }
  const Route* route = FindRoute(head.Path());
  if (route == nullptr) {
    return lssar::ErrorReply(
        404, StrCat("there is no ", Shorten(head.method, kMaxShownBytes), " ",
                    Shorten(head.Path(), kMaxShownBytes), "; there are ", PathList()));
  }
  if (head.method != "OPTIONS" && !Allows(*route, head.method)) {
    HttpReply reply =
        lssar::ErrorReply(405, StrCat(Shorten(head.method, kMaxShownBytes), " ", route->path,
                                      ": the path takes ", AllowedMethods(*route)));
    reply.headers.push_back({"Allow", AllowedMethods(*route)});
    return reply;
  }
  // A probe may call the server by any name.
  if (route->endpoint != Endpoint::kHealth && route->endpoint != Endpoint::kReadiness) {
    const absl::Status status = cross_origin.Check(head);
    if (!status.ok()) return lssar::ErrorReply(status);
  }
  if (head.method == "POST") {
    const std::string_view type = head.Header("content-type");
    const std::string_view media = type.substr(0, type.find(';'));
    // curl's default is let through: only a type that says something else is refused.
    if (media.starts_with("multipart/") || media.starts_with("image/") ||
        media.starts_with("audio/")) {
      return lssar::ErrorReply(
          415, StrCat("Content-Type ", Shorten(media, kMaxShownBytes), ": send application/json"));
    }
  }
  if (route->IsPage() || head.method == "OPTIONS") return std::nullopt;
  return CallRefusal(*route, head);
}

std::optional<HttpReply> HttpServer::State::CallRefusal(const Route& route,
                                                        const HttpRequest& head) const {
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(parts.admission->Readiness());
    RETURN_IF_ERROR(parts.admission->CheckRole(head.Header("authorization"), KeyRole::kUser));
    return ReadTimeout(head).status();
  }();
  if (status.ok()) return std::nullopt;
  CallContext context(ReadHttpMetadata(RpcName(route), route.kind, head), parts);
  context.End(status);
  HttpReply reply = lssar::ErrorReply(status);
  reply.headers.push_back({"X-Request-Id", context.RequestId()});
  reply.headers.push_back({"Traceparent", context.Traceparent()});
  return reply;
}

std::vector<HttpHeader> HttpServer::State::CorsHeaders(const HttpRequest& request) const {
  const std::string_view origin = request.Header("origin");
  if (cross_origin.IsEmpty()) return {};
  std::vector<HttpHeader> headers = {{"Vary", "Origin"}};
  if (!cross_origin.Allows(origin)) return headers;
  headers.push_back({"Access-Control-Allow-Origin", std::string(origin)});
  headers.push_back({"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"});
  return headers;
}

HttpReply HttpServer::State::Preflight(const Route& route, const HttpRequest& request) const {
  HttpReply reply{.status = 204, .body = "", .headers = {{"Allow", AllowedMethods(route)}}};
  if (!cross_origin.IsEmpty() && !request.Header("origin").empty()) {
    reply.headers.push_back({"Access-Control-Allow-Methods", AllowedMethods(route)});
    reply.headers.push_back(
        {"Access-Control-Allow-Headers",
         "Authorization, Content-Type, X-Request-Id, X-Request-Timeout, Traceparent"});
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
  for (HttpHeader& header : CorsHeaders(request)) {
    exchange->AddHeader(std::move(header.name), std::move(header.value));
  }
  if (auto refusal = Refusal(request)) {
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
    case Endpoint::kWebPage:
      exchange->Reply(options.web_page
                          ? WebPage(request.Path())
                          : lssar::ErrorReply(404, "the web page is off (--web-page)"));
      return;
    default: StartCall(route, exchange);
  }
}

void HttpServer::State::StartCall(const Route& route,
                                  const std::shared_ptr<HttpExchange>& exchange) {
  switch (route.endpoint) {
    case Endpoint::kCompletions:
    case Endpoint::kChatCompletions:
      std::make_shared<CompletionCall>(route.endpoint == Endpoint::kChatCompletions, exchange,
                                       parts)
          ->Start();
      return;
    case Endpoint::kScore: std::make_shared<HttpScoreCall>(exchange, parts)->Start(); return;
    case Endpoint::kEmbeddings:
      std::make_shared<HttpEmbeddingCall>(exchange, parts)->Start();
      return;
    case Endpoint::kAttention:
      std::make_shared<HttpAttentionCall>(exchange, parts)->Start();
      return;
    default:
      std::make_shared<HttpUnaryCall>(RpcName(route), exchange, parts)
          ->Start([endpoint = route.endpoint, created = started_at](const HttpRequest& request,
                                                                    const CallContext& context) {
            return UnaryBody(endpoint, request, context, created);
          });
  }
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Open(const ServerOptions& options,
                                                             HttpPages pages,
                                                             const ServiceParts& parts,
                                                             TlsCertificates* certificates) {
  std::unique_ptr<TlsContext> tls;
  if (certificates != nullptr) tls = std::make_unique<TlsContext>(certificates);
  auto state = std::make_unique<State>(options, std::move(pages), parts);
  TransportOptions transport;
  transport.listen = options.http_listen;
  const ConnectionOptions& connection = options.connection;
  transport.limits = {.max_connections = connection.max_connections,
                      .max_connections_per_address = connection.max_connections_per_address,
                      .metrics = parts.metrics == nullptr ? nullptr : &parts.metrics->HttpPort()};
  transport.log = parts.log;
  transport.handshake_timeout = absl::ToChronoMilliseconds(connection.handshake_timeout);
  transport.stream = options.stream;
  ASSIGN_OR_RETURN(state->transport, HttpTransport::Open(transport, std::move(tls), state.get()));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  // No request comes any more, and no connection hears of what the workers still do.
  state_->transport.reset();
}

int HttpServer::Port() const { return state_->transport->Port(); }

}  // namespace lssar
