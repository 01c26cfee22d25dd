#include "server/http/http_server.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/config/flags.h"
#include "server/config/security_warnings.h"
#include "server/http/batch_calls.h"
#include "server/http/call_metadata.h"
#include "server/http/cross_origin.h"
#include "server/http/http_call.h"
#include "server/http/http_codec.h"
#include "server/http/http_error.h"
#include "server/http/http_transport.h"
#include "server/http/json_text.h"
#include "server/http/openapi.h"
#include "server/http/tokenizer_calls.h"
#include "server/http/web_page.h"

namespace lssar {
namespace {

// Bytes of a path, or of a header, that an error repeats.
constexpr size_t kMaxShownBytes = 64;

constexpr std::string_view kModelsPrefix = "/v1/models/";

// Paths of one running call, by the id of its reply.
struct CallPath {
  std::string_view prefix;  // what the id follows
  std::string_view route;
  std::string_view id_prefix;  // of the id, before the request id
  std::string_view object;     // of the answer
};
constexpr auto kCallPaths = std::to_array<CallPath>({
    {"/v1/completions/", "/v1/completions/{id}", "cmpl-", "text_completion.deleted"},
    {"/v1/chat/completions/", "/v1/chat/completions/{id}", "chatcmpl-", "chat.completion.deleted"},
    {"/v1/responses/", "/v1/responses/{id}", "resp_", "response"},
    {"/v1/messages/", "/v1/messages/{id}", "msg_", "message"},
});

// lm-eval makes the tokenizer's paths from that of the completions. They are what they are without
// the prefix.
constexpr std::string_view kLmEval = "/lm_eval";
constexpr std::array<std::string_view, 3> kLmEvalPaths = {
    "/lm_eval/tokenize", "/lm_eval/detokenize", "/lm_eval/tokenizer_info"};

// Null: the path is none of them.
const CallPath* FindCallPath(std::string_view path) {
  for (const CallPath& call : kCallPaths) {
    if (path.starts_with(call.prefix) && path.size() > call.prefix.size()) return &call;
  }
  return nullptr;
}

bool Allows(std::string_view route_method, std::string_view method) {
  return method == route_method || (route_method == "GET" && method == "HEAD");
}

HttpReply TextReply(const absl::Status& status) {
  return {.status = status.ok() ? 200 : 503,
          .body = status.ok() ? "ok\n" : StrCat(status.message(), "\n"),
          .content_type = "text/plain; charset=utf-8"};
}

// "a%2Fb" -> "a/b". What is no escape stays.
std::string PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '%' && i + 2 < text.size() &&
                           absl::ascii_isxdigit(uint8_t(text[i + 1])) &&
                           absl::ascii_isxdigit(uint8_t(text[i + 2]));
    if (!is_escape) {
      decoded += text[i];
      continue;
    }
    decoded += absl::HexStringToBytes(absl::string_view(text.data() + i + 1, 2));
    i += 2;
  }
  return decoded;
}

// DELETE of a running call: it ends, and its answer is the error of a cancelled call.
absl::StatusOr<std::string> DeleteCall(const HttpRequest& request, const CallContext& context) {
  const CallPath& call = *FindCallPath(request.Path());
  const std::string id = PercentDecode(request.Path().substr(call.prefix.size()));
  std::string_view request_id = id;
  if (request_id.starts_with(call.id_prefix)) request_id.remove_prefix(call.id_prefix.size());
  if (context.AbortCalls(request_id) == 0) {
    return absl::NotFoundError(
        StrCat("no call with the id ", Quote(id), " is running; ended calls are not kept"));
  }
  return StrCat("{\"id\":", JsonString(id), ",\"object\":\"", call.object, "\",\"deleted\":true}");
}

HttpMethod MakeDeleteCall() { return MakeAnswer(DeleteCall); }

// GET /v1/models and GET /v1/models/NAME. `created`: of the model, in seconds since 1970.
absl::StatusOr<std::string> ModelsJson(const HttpRequest& request, const CallContext& context,
                                       int64_t created) {
  const LoadedModel& model = context.Model();
  const std::string_view path = request.Path();
  if (!path.starts_with(kModelsPrefix)) {
    return StrCat("{\"object\":\"list\",\"data\":[",
                  StrJoin(model.ServedNames(),
                          [&](const std::string& name) { return ModelJson(model, name, created); }),
                  "]}");
  }
  const std::string name = PercentDecode(path.substr(kModelsPrefix.size()));
  RETURN_IF_ERROR(model.CheckName(name));
  return ModelJson(model, name, created);
}

}  // namespace

struct HttpServer::State final : public HttpHandler {
  // A path: either a page, which answers in every state of the server, or a call.
  struct Route {
    std::string_view method;  // of GET, HEAD is one too
    std::string_view path;
    std::string_view rpc = {};          // the call's name in the log line
    std::optional<CallKind> kind = {};  // set: the engine works for it
    // A call has one of the three.
    HttpMethod (*make)() = {};
    HttpMethod (*make_for)(const State&) = {};
    HttpMethod (*make_batch)(BatchStore*) = {};
    HttpReply (*page)(const State&, const HttpRequest&) = {};
    bool is_probe = false;  // may be asked for by any name of the host

    bool IsCall() const { return page == nullptr; }
    HttpMethod Make(const State& state) const {
      if (make_batch != nullptr) {
        return state.batches == nullptr ? MakeBatchesOff() : make_batch(state.batches);
      }
      return make != nullptr ? make() : make_for(state);
    }
  };
  static std::span<const Route> Routes();
  // Null: there is no such path. One of another method where the path does not take `method`.
  static const Route* FindRoute(std::string_view path, std::string_view method);
  // For the header Allow: "GET, HEAD, OPTIONS".
  static std::string AllowedMethods(std::string_view route_path);
  static std::string PathList();
  // Why there is no path of that name. What is a call's path but for slashes at its end is 307, as
  // of vLLM and other servers made with FastAPI. It is not answered itself: a proxy that lets some
  // paths through would not see which one it is.
  static HttpReply NoSuchPath(const HttpRequest& head);

  State(const ServerOptions& server_options, ProbeEndpoints probe_endpoints,
        const ServiceContext& context, BatchStore* batch_store)
      : options(server_options),
        pages(std::move(probe_endpoints)),
        parts(context),
        batches(batch_store),
        open_api(OpenApiJson(options.model.max_choices)),
        cross_origin(options.http_cors_origins, /*checks_host=*/IsForThisMachine()) {}

  // No client comes from another machine, directly or through a proxy, and none needs a key.
  bool IsForThisMachine() const {
    return IsLoopback(options.http_listen) && options.api_keys.empty() &&
           options.connection.max_connections_per_address > 0;
  }

  std::optional<HttpReply> CheckHead(HttpRequest* head) override;
  void OnRequest(std::shared_ptr<HttpExchange> exchange) override;
  HttpReply ErrorReply(const HttpRequest& head, int status, std::string message) override {
    return AsErrorOf(head, lssar::ErrorReply(status, message));
  }
  // In the shape that the path's clients expect, with the headers that their pages need.
  HttpReply AsErrorOf(const HttpRequest& head, HttpReply reply) const;

  // The part of a request's check that needs no body. Nullopt: nothing is wrong.
  std::optional<HttpReply> Reject(HttpRequest* head) const;
  // Whether the call may be made at all: state of the server, API key, timeout. Sets the head's
  // caller. The admission itself comes with the whole request. A call that is rejected here has a
  // log line, too.
  std::optional<HttpReply> RejectCall(const Route& route, HttpRequest* head) const;
  std::vector<HttpHeader> CorsHeaders(const HttpRequest& request) const;
  HttpReply Preflight(const Route& route, const HttpRequest& request) const;
  HttpReply MetricsPage(const HttpRequest& request) const;
  const ServerOptions options;
  const ProbeEndpoints pages;
  const ServiceContext parts;
  BatchStore* const batches;   // null: there are none
  const std::string open_api;  // GET /openapi.json
  const CrossOriginCheck cross_origin;
  const int64_t started_at = std::time(nullptr);
  std::unique_ptr<HttpTransport> transport;
};

// Every path of the port, and its entry in openapi.json. A list's is a row of ListPaths, those of
// files and batches are BatchPaths, and DELETE is on kCallPaths.
std::span<const HttpServer::State::Route> HttpServer::State::Routes() {
  static constexpr auto kRoutes = std::to_array<Route>({
      {.method = "POST",
       .path = "/v1/completions",
       .rpc = "POST /v1/completions",
       .kind = CallKind::kGenerate,
       .make = MakeCompletion},
      {.method = "POST",
       .path = "/v1/chat/completions",
       .rpc = "POST /v1/chat/completions",
       .kind = CallKind::kGenerate,
       .make = MakeChatCompletion},
      {.method = "POST",
       .path = "/v1/responses",
       .rpc = "POST /v1/responses",
       .kind = CallKind::kGenerate,
       .make = MakeResponse},
      {.method = "POST",
       .path = "/v1/messages",
       .rpc = "POST /v1/messages",
       .kind = CallKind::kGenerate,
       .make = MakeMessage},
      {.method = "POST",
       .path = "/v1/messages/count_tokens",
       .rpc = "/v1/messages/count_tokens",
       .make = [] { return MakeAnswer(CountTokensJson); }},
      {.method = "GET",
       .path = "/v1/models",
       .rpc = "/v1/models",
       .make_for =
           [](const State& state) {
             return MakeAnswer([created = state.started_at](const HttpRequest& request,
                                                            const CallContext& context) {
               return ModelsJson(request, context, created);
             });
           }},
      {.method = "POST",
       .path = "/tokenize",
       .rpc = "/tokenize",
       .make = [] { return MakeAnswer(TokenizeJson); }},
      {.method = "POST",
       .path = "/detokenize",
       .rpc = "/detokenize",
       .make = [] { return MakeAnswer(DetokenizeJson); }},
      {.method = "GET",
       .path = "/tokenizer_info",
       .rpc = "/tokenizer_info",
       .make = [] { return MakeAnswer(TokenizerInfoJson); }},
      {.method = "POST",
       .path = "/lm_eval/v1/completions",
       .rpc = "POST /lm_eval/v1/completions",
       .kind = CallKind::kGenerate,
       .make = MakeLmEvalCompletion},
      {.method = "GET",
       .path = "/openapi.json",
       .page = [](const State& state,
                  const HttpRequest&) { return HttpReply{.status = 200, .body = state.open_api}; }},
      {.method = "GET",
       .path = "/metrics",
       .page = [](const State& state,
                  const HttpRequest& request) { return state.MetricsPage(request); }},
      {.method = "GET",
       .path = "/healthz",
       .page = [](const State& state,
                  const HttpRequest&) { return TextReply(state.pages.health()); },
       .is_probe = true},
      {.method = "GET",
       .path = "/readyz",
       .page = [](const State& state,
                  const HttpRequest&) { return TextReply(state.pages.readiness()); },
       .is_probe = true},
      // The names that vLLM (/health), SageMaker (/ping) and benchmarks of others ask for.
      {.method = "GET",
       .path = "/health",
       .page = [](const State& state,
                  const HttpRequest&) { return TextReply(state.pages.readiness()); },
       .is_probe = true},
      {.method = "GET",
       .path = "/ping",
       .page = [](const State& state,
                  const HttpRequest&) { return TextReply(state.pages.readiness()); },
       .is_probe = true},
      {.method = "GET",
       .path = "/version",
       .rpc = "/version",
       .make =
           [] {
             return MakeAnswer([](const HttpRequest&, const CallContext&) {
               return absl::StatusOr<std::string>("{\"version\":\"" LSSAR_VERSION "\"}");
             });
           }},
      {.method = "GET",
       .path = "/",
       .page =
           [](const State& state, const HttpRequest& request) {
             return state.options.web_page
                        ? WebPage(request.Path(), state.options.http_cors_origins)
                        : lssar::ErrorReply(404, "the web page is off (--web-page)");
           }},
  });
  static const std::vector<Route> routes = [] {
    std::vector<Route> all(kRoutes.begin(), kRoutes.end());
    // Puts what `to_route` makes of each row before the route of `path`.
    const auto insert = [&all](std::string_view path, const auto& rows, const auto& to_route) {
      std::vector<Route> made;
      for (const auto& row : rows) made.push_back(to_route(row));
      all.insert(std::ranges::find(all, path, &Route::path), made.begin(), made.end());
    };
    insert("/v1/models", kCallPaths, [](const CallPath& call) {
      return Route{.method = "DELETE", .path = call.route, .rpc = "DELETE", .make = MakeDeleteCall};
    });
    insert("/v1/models", ListPaths(), [](const ListPath& list) {
      return Route{.method = "POST",
                   .path = list.path,
                   .rpc = list.rpc,
                   .kind = list.kind,
                   .make = list.make};
    });
    insert("/v1/models", BatchPaths(), [](const BatchPath& batch) {
      return Route{
          .method = batch.method, .path = batch.path, .rpc = batch.rpc, .make_batch = batch.make};
    });
    insert("/openapi.json", kLmEvalPaths, [&all](std::string_view path) {
      Route route = *std::ranges::find(all, path.substr(kLmEval.size()), &Route::path);
      route.path = path;
      return route;
    });
    return all;
  }();
  return routes;
}

const HttpServer::State::Route* HttpServer::State::FindRoute(std::string_view path,
                                                             std::string_view method) {
  if (path.starts_with(kModelsPrefix) && path.size() > kModelsPrefix.size()) path = "/v1/models";
  if (IsWebPath(path)) path = "/";
  if (const std::string_view batch = BatchPathOf(path); !batch.empty()) path = batch;
  const CallPath* const call = FindCallPath(path);
  if (call != nullptr && std::ranges::count(Routes(), path, &Route::path) == 0) path = call->route;
  const Route* other = nullptr;
  for (const Route& route : Routes()) {
    if (route.path != path) continue;
    if (Allows(route.method, method)) return &route;
    if (other == nullptr) other = &route;
  }
  return other;
}

std::string HttpServer::State::AllowedMethods(std::string_view route_path) {
  std::string methods;
  for (const Route& route : Routes()) {
    if (route.path != route_path) continue;
    methods += StrCat(route.method, route.method == "GET" ? ", HEAD" : "", ", ");
  }
  return methods + "OPTIONS";
}

std::string HttpServer::State::PathList() {
  return StrJoin(Routes(),
                 [](const Route& route) { return StrCat(route.method, " ", route.path); });
}

HttpReply HttpServer::State::NoSuchPath(const HttpRequest& head) {
  const std::string_view path = head.Path();
  const std::string_view trimmed = path.substr(0, path.find_last_not_of('/') + 1);
  const Route* const route = FindRoute(trimmed, head.method);
  if (route != nullptr && route->IsCall()) {
    HttpReply reply = lssar::ErrorReply(
        307, StrCat("the path is ", Shorten(trimmed, kMaxShownBytes), ", without a slash behind"));
    reply.headers.push_back(
        {"Location", StrCat(trimmed, std::string_view(head.target).substr(path.size()))});
    return reply;
  }
  std::vector<std::string> paths;
  for (const Route& known : Routes()) paths.emplace_back(known.path);
  const std::string shown = Shorten(path, kMaxShownBytes);
  const std::string nearest = NearestName(shown, paths);
  return lssar::ErrorReply(
      404, StrCat("there is no ", Shorten(head.method, kMaxShownBytes), " ", shown,
                  nearest.empty() ? "" : StrCat("; did you mean ", nearest, "?"), "; there are ",
                  PathList()));
}

std::optional<HttpReply> HttpServer::State::CheckHead(HttpRequest* head) {
  std::optional<HttpReply> rejection = Reject(head);
  if (rejection) rejection = AsErrorOf(*head, *std::move(rejection));
  return rejection;
}

HttpReply HttpServer::State::AsErrorOf(const HttpRequest& head, HttpReply reply) const {
  reply = InShapeOf(head.Path(), std::move(reply));
  for (HttpHeader& header : CorsHeaders(head)) reply.headers.push_back(std::move(header));
  return reply;
}

std::optional<HttpReply> HttpServer::State::Reject(HttpRequest* request) const {
  const HttpRequest& head = *request;
  // RFC 9112, section 3.2.
  if (const auto num_hosts = std::ranges::count(head.headers, "host", &HttpHeader::name);
      num_hosts > 1 || (num_hosts == 0 && !head.is_http_1_0)) {
    return lssar::ErrorReply(
        400, StrCat("the request has ", num_hosts, " Host headers; HTTP/1.1 asks for one"));
  }
  const Route* route = FindRoute(head.Path(), head.method);
  if (route == nullptr) return NoSuchPath(head);
  if (head.method != "OPTIONS" && !Allows(route->method, head.method)) {
    HttpReply reply =
        lssar::ErrorReply(405, StrCat(Shorten(head.method, kMaxShownBytes), " ", route->path,
                                      ": the path takes ", AllowedMethods(route->path)));
    reply.headers.push_back({"Allow", AllowedMethods(route->path)});
    return reply;
  }
  if (!route->is_probe) {
    // A browser sends no certificate with a preflight.
    if (!options.tls.client_ca.empty() && !head.has_client_certificate &&
        head.method != "OPTIONS") {
      return lssar::ErrorReply(absl::PermissionDeniedError(
          "this server requires a client certificate that a root of --tls-client-ca has signed"));
    }
    const absl::Status status = cross_origin.Check(head);
    if (!status.ok()) return lssar::ErrorReply(status);
  }
  if (head.method == "POST") {
    const std::string_view type = head.Header("content-type");
    const std::string_view media = type.substr(0, type.find(';'));
    // curl's default is let through: only a type that says something else is refused.
    const bool is_form = media.starts_with("multipart/");
    if (is_form != (route->path == kFilesPath) || media.starts_with("image/") ||
        media.starts_with("audio/")) {
      return lssar::ErrorReply(
          415, StrCat("Content-Type ", Shorten(media, kMaxShownBytes), ": send ",
                      route->path == kFilesPath ? "multipart/form-data" : "application/json"));
    }
  }
  request->is_checked = true;
  if (!route->IsCall() || head.method == "OPTIONS") return std::nullopt;
  return RejectCall(*route, request);
}

std::optional<HttpReply> HttpServer::State::RejectCall(const Route& route,
                                                       HttpRequest* request) const {
  HttpRequest& head = *request;
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(parts.admission->Readiness());
    ASSIGN_OR_RETURN(head.caller,
                     parts.admission->Authenticate(AuthorizationOf(head), KeyRole::kUser));
    return ReadTimeout(head).status();
  }();
  if (status.ok()) return std::nullopt;
  CallContext context(ReadHttpMetadata(route.rpc, route.path, route.kind, head), parts);
  HttpReply reply = lssar::ErrorReply(status);
  context.SetHttpStatus(reply.status);
  context.End(status);
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
  headers.push_back({"Access-Control-Expose-Headers",
                     "X-Request-Id, Retry-After, Retry-After-Ms, X-Should-Retry"});
  return headers;
}

HttpReply HttpServer::State::Preflight(const Route& route, const HttpRequest& request) const {
  HttpReply reply{.status = 204, .body = "", .headers = {{"Allow", AllowedMethods(route.path)}}};
  if (cross_origin.Allows(request.Header("origin"))) {
    reply.headers.push_back({"Access-Control-Allow-Methods", AllowedMethods(route.path)});
    // Pages of listed origins may send any header: OpenAI's SDK has some of its own, others in each
    // version. * would not cover Authorization.
    const std::string_view asked = request.Header("access-control-request-headers");
    reply.headers.push_back(
        {"Access-Control-Allow-Headers",
         StrCat("Authorization, Content-Type, X-Request-Id, X-Request-Timeout, Traceparent",
                asked.empty() ? "" : ", ", asked)});
    reply.headers.push_back({"Access-Control-Max-Age", "600"});
  }
  return reply;
}

HttpReply HttpServer::State::MetricsPage(const HttpRequest& request) const {
  const absl::Status status = pages.check_admin(AuthorizationOf(request));
  if (!status.ok()) return lssar::ErrorReply(status);
  return {.status = 200,
          .body = pages.metrics(),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

void HttpServer::State::OnRequest(std::shared_ptr<HttpExchange> exchange) {
  HttpRequest& request = exchange->Request();
  for (HttpHeader& header : CorsHeaders(request)) {
    exchange->AddHeader(std::move(header.name), std::move(header.value));
  }
  if (!request.is_checked) {
    if (auto rejection = Reject(&request)) {
      exchange->Reply(InShapeOf(request.Path(), *std::move(rejection)));
      return;
    }
  }
  const Route& route = *FindRoute(request.Path(), request.method);
  if (request.method == "OPTIONS") {
    exchange->Reply(Preflight(route, request));
  } else if (route.page != nullptr) {
    exchange->Reply(route.page(*this, request));
  } else {
    std::make_shared<HttpCall>(route.rpc, route.path, route.kind, route.Make(*this), exchange,
                               parts)
        ->Start();
  }
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Open(const ServerOptions& options,
                                                             ProbeEndpoints pages,
                                                             const ServiceContext& parts,
                                                             TlsCertificates* certificates,
                                                             BatchStore* batches) {
  auto state = std::make_unique<State>(options, std::move(pages), parts, batches);
  TransportOptions transport;
  transport.listen = options.http_listen;
  const ConnectionOptions& connection = options.connection;
  transport.limits = {.max_connections = connection.max_connections,
                      .max_connections_per_address = connection.max_connections_per_address,
                      .metrics = parts.metrics == nullptr ? nullptr : &parts.metrics->HttpPort()};
  transport.log = parts.log;
  transport.handshake_timeout = absl::ToChronoMilliseconds(connection.handshake_timeout);
  transport.stream = options.stream;
  ASSIGN_OR_RETURN(state->transport, HttpTransport::Open(transport, certificates, state.get()));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  // No request comes any more, and no connection gets what the workers still do.
  state_->transport.reset();
}

void HttpServer::Answer(std::shared_ptr<HttpExchange> exchange) {
  state_->OnRequest(std::move(exchange));
}

int HttpServer::Port() const { return state_->transport->Port(); }

}  // namespace lssar
