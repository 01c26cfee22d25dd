// The HTTP port: connections, HTTP/1.1 and TLS, event-driven on two threads.
#ifndef LSSAR_SERVER_HTTP_HTTP_TRANSPORT_H_
#define LSSAR_SERVER_HTTP_HTTP_TRANSPORT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/http_exchange.h"
#include "server/http/http_message.h"
#include "server/net/connection_limiter.h"
#include "server/net/tls.h"
#include "server/ops/log.h"

namespace lssar {

// What answers the requests. Called on the I/O threads: must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The head of a request with a body, before that is read. A reply rejects it: the body is
  // not read. What is set in `head` is in OnRequest's request, too.
  virtual std::optional<HttpReply> CheckHead(HttpRequest* head) = 0;
  // The whole request. The handler answers through the exchange, now or later.
  virtual void OnRequest(std::shared_ptr<HttpExchange> exchange) = 0;
  // The answer to a request that cannot be read, with this status. `head`: what is known of it.
  virtual HttpReply ErrorReply(const HttpRequest& head, int status, std::string message) = 0;
};

struct TransportOptions {
  std::string listen = {};  // HOST:PORT; port 0: any free one
  // A connection beyond these is answered with 503 or 429 and closed; with TLS it is only closed.
  ConnectionLimiter::Options limits = {.max_connections = 4096};
  const Log* log = nullptr;   // outlives the transport; null: no log lines
  StreamOptions stream = {};  // of one answer
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(10);  // of TLS
  std::chrono::milliseconds head_timeout = std::chrono::seconds(10);
  std::chrono::milliseconds body_timeout = std::chrono::minutes(2);
  std::chrono::milliseconds idle_timeout = std::chrono::seconds(75);  // between requests
  // Bodies of all requests that are being read or answered; a request beyond it is answered with
  // 503. Where connections are limited per address, one address has half of it, and gets 429.
  int64_t max_total_body_bytes = int64_t{512} << 20;
};

class HttpTransport {
 public:
  // Listens and serves from now on. `certificates`, null for no TLS, and `handler` outlive the
  // transport. Where client certificates are asked for, HttpServer refuses requests without one,
  // except for health probes, which have none.
  // Errors  INVALID_ARGUMENT: `listen` is not HOST:PORT; UNAVAILABLE: the address cannot be used
  static absl::StatusOr<std::unique_ptr<HttpTransport>> Open(const TransportOptions& options,
                                                             TlsCertificates* certificates,
                                                             HttpHandler* handler);
  // Closes every connection. Answers that have ended get 200 ms to be written.
  ~HttpTransport();
  HttpTransport(const HttpTransport&) = delete;
  HttpTransport& operator=(const HttpTransport&) = delete;

  int Port() const;

 private:
  struct State;
  explicit HttpTransport(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_TRANSPORT_H_
