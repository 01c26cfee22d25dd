#include "server/http_server.h"

#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/request.h"

namespace lssar {
namespace {

constexpr int kNumThreads = 16;
constexpr size_t kMaxRequestBytes = size_t{64} << 10;
constexpr auto kConnectionLimit = std::chrono::seconds(5);
// How soon a waiting connection sees that the server stops.
constexpr auto kStopInterval = std::chrono::milliseconds(100);

// A connection with an end: the library's own has a timeout for each read, so that a client with a
// byte now and then would keep its thread for ever.
class BoundedStream final : public httplib::Stream {
 public:
  BoundedStream(int socket, const std::atomic<bool>* is_stopping)
      : socket_(socket), end_(Clock::now() + kConnectionLimit), is_stopping_(is_stopping) {}

  bool is_readable() const override { return next_ < filled_ || Wait(POLLIN); }
  bool is_writable() const override { return Wait(POLLOUT); }

  ssize_t read(char* ptr, size_t size) override {
    if (next_ == filled_) {
      if (num_read_ >= kMaxRequestBytes || !Wait(POLLIN)) return -1;
      const ssize_t received = recv(socket_, buffer_, sizeof(buffer_), 0);
      if (received <= 0) return received;
      next_ = 0;
      filled_ = size_t(received);
      num_read_ += filled_;
    }
    const size_t count = std::min(size, filled_ - next_);
    std::copy_n(buffer_ + next_, count, ptr);
    next_ += count;
    return ssize_t(count);
  }

  ssize_t write(const char* ptr, size_t size) override {
    if (!Wait(POLLOUT)) return -1;
    return send(socket_, ptr, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Nothing here asks who is there.
  void get_remote_ip_and_port(std::string& ip, int& port) const override { Clear(ip, port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { Clear(ip, port); }
  socket_t socket() const override { return socket_; }

 private:
  static void Clear(std::string& ip, int& port) {
    ip.clear();
    port = 0;
  }

  // False: the connection's time is over, or the server stops.
  bool Wait(short events) const {
    pollfd waited = {.fd = socket_, .events = events, .revents = 0};
    while (!*is_stopping_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
      if (left.count() <= 0) return false;
      const int num_ready = poll(&waited, 1, int(std::min(left, kStopInterval).count()));
      if (num_ready > 0) return true;
      if (num_ready < 0 && errno != EINTR) return false;
    }
    return false;
  }

  const int socket_;
  const Clock::time_point end_;
  const std::atomic<bool>* const is_stopping_;
  char buffer_[4096];
  size_t next_ = 0, filled_ = 0;  // of the buffer
  size_t num_read_ = 0;
};

class BoundedServer final : public httplib::Server {
 public:
  void Stop() {
    is_stopping_ = true;
    stop();
  }

 private:
  bool process_and_close_socket(socket_t sock) override {
    BoundedStream stream(sock, &is_stopping_);
    bool is_closed = false;
    const bool is_served =
        process_request(stream, /*close_connection=*/true, is_closed, /*setup_request=*/nullptr);
    shutdown(sock, SHUT_RDWR);
    close(sock);
    return is_served;
  }

  std::atomic<bool> is_stopping_ = false;
};

void SetStatusPage(const absl::Status& status, httplib::Response& response) {
  response.status = status.ok() ? 200 : 503;
  response.set_content(status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n"),
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
  std::string message = absl::StrCat("the request cannot be read (HTTP ", response.status, ")");
  if (response.status == 404) {
    message = absl::StrCat("there is no ", request.method, " ", request.path,
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
  BoundedServer server;
  int port = 0;
  std::thread listener;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Open(const std::string& listen,
                                                             HttpPages pages) {
  auto state = std::make_unique<State>();
  BoundedServer& server = state->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kNumThreads); };
  server.set_payload_max_length(kMaxRequestBytes);
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
    return absl::InvalidArgumentError(absl::StrCat(listen, " is not HOST:PORT"));
  }
  if (state->port == 0) {
    state->port = server.bind_to_any_port(host);
  } else if (!server.bind_to_port(host, state->port)) {
    state->port = -1;
  }
  if (state->port <= 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen,
                                               " (--http-listen): the port is in use, or the "
                                               "address is not one of this machine"));
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
