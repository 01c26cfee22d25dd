#include "server/http_server.h"

#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "kernels/str_cat.h"
#include "server/bounded_stream.h"
#include "server/tls_context.h"

namespace lssar {
namespace {

constexpr int kNumThreads = 16;
constexpr size_t kMaxBodyBytes = size_t{64} << 10;

class BoundedServer final : public httplib::Server {
 public:
  // Null: no TLS.
  explicit BoundedServer(std::unique_ptr<TlsContext> tls) : tls_(std::move(tls)) {}

  void Stop() {
    is_stopping_ = true;
    stop();
  }

 private:
  bool process_and_close_socket(socket_t sock) override {
    const std::shared_ptr<SSL_CTX> tls = tls_ == nullptr ? nullptr : tls_->Current();
    BoundedStream stream(sock, &is_stopping_, tls.get());
    bool is_closed = false;
    const bool is_served =
        stream.Handshake() &&
        process_request(stream, /*close_connection=*/true, is_closed, /*setup_request=*/nullptr);
    stream.Goodbye();
    shutdown(sock, SHUT_RDWR);
    close(sock);
    return is_served;
  }

  const std::unique_ptr<TlsContext> tls_;
  std::atomic<bool> is_stopping_ = false;
};

void SetStatusPage(const absl::Status& status, httplib::Response& response) {
  response.status = status.ok() ? 200 : 503;
  response.set_content(status.ok() ? "ok\n" : StrCat(status.message(), "\n"),
                       "text/plain; charset=utf-8");
}

// OpenAI's shape.
void SetError(int status, const std::string& message, httplib::Response& response) {
  response.status = status;
  const nlohmann::ordered_json error = {
      {"error", {{"message", message}, {"type", "invalid_request_error"}, {"code", status}}}};
  response.set_content(error.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
                       "application/json");
}

// For every status without a page of its own.
void SetErrorPage(const httplib::Request& request, httplib::Response& response) {
  if (!response.body.empty()) return;
  std::string message = StrCat("the request cannot be read (HTTP ", response.status, ")");
  if (response.status == 404) {
    message = StrCat("there is no ", request.method, " ", request.path,
                     "; there are GET /metrics, /healthz, /readyz");
  }
  SetError(response.status, message, response);
}

void SetMetricsPage(const HttpPages& pages, const httplib::Request& request,
                    httplib::Response& response) {
  const absl::Status status = pages.check_admin(request.get_header_value("Authorization"));
  if (status.ok()) {
    response.set_content(pages.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    return;
  }
  const bool is_unknown = absl::IsUnauthenticated(status);
  if (is_unknown) response.set_header("WWW-Authenticate", "Bearer");
  SetError(is_unknown ? 401 : 403, std::string(status.message()), response);
}

// "[::1]:8080" -> "::1", 8080.
bool SplitAddress(std::string_view listen, std::string* host, int* port) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string_view::npos) return false;
  std::string_view name = listen.substr(0, colon);
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  *host = name;
  return absl::SimpleAtoi(std::string(listen.substr(colon + 1)), port);
}

}  // namespace

struct HttpServer::State {
  explicit State(std::unique_ptr<TlsContext> tls) : server(std::move(tls)) {}
  BoundedServer server;
  int port = 0;
  std::thread listener;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Open(const std::string& listen,
                                                             HttpPages pages,
                                                             const TlsFiles& files) {
  std::unique_ptr<TlsContext> tls;
  if (files.HasTls()) {
    auto opened = TlsContext::Open(files);
    if (!opened.ok()) return opened.status();
    tls = *std::move(opened);
  }
  auto state = std::make_unique<State>(std::move(tls));
  BoundedServer& server = state->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kNumThreads); };
  server.set_payload_max_length(kMaxBodyBytes);
  // The library's default would let a second server share the port silently.
  server.set_socket_options([](int sock) {
    const int yes = 1;
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server.set_error_handler(SetErrorPage);
  server.set_exception_handler([](const httplib::Request&, httplib::Response& response,
                                  std::exception_ptr) { response.status = 500; });
  server.Get("/metrics", [pages](const httplib::Request& request, httplib::Response& response) {
    SetMetricsPage(pages, request, response);
  });
  server.Get("/healthz", [page = pages.health](const httplib::Request&, httplib::Response& r) {
    SetStatusPage(page(), r);
  });
  server.Get("/readyz", [page = pages.readiness](const httplib::Request&, httplib::Response& r) {
    SetStatusPage(page(), r);
  });

  std::string host;
  if (!SplitAddress(listen, &host, &state->port)) {
    return absl::InvalidArgumentError(StrCat(listen, " is not HOST:PORT"));
  }
  if (state->port == 0) {
    state->port = server.bind_to_any_port(host);
  } else if (!server.bind_to_port(host, state->port)) {
    state->port = -1;
  }
  if (state->port <= 0) {
    return absl::UnavailableError(
        StrCat("--http-listen ", listen,
               ": the port is in use, or the address is not one of this machine; set "
               "--http-listen to another HOST:PORT, to port 0 for any free one, or to off"));
  }
  state->listener = std::thread([&server] { server.listen_after_bind(); });
  // Until then it would not hear a stop.
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  state_->server.Stop();
  state_->listener.join();
}

int HttpServer::Port() const { return state_->port; }

}  // namespace lssar
