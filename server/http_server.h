// The HTTP port: pages for Prometheus and for those who ask whether the server lives.
#ifndef LSSAR_SERVER_HTTP_SERVER_H_
#define LSSAR_SERVER_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tls.h"

namespace lssar {

// What the pages say; asked on threads of the HTTP server.
struct HttpPages {
  std::function<std::string()> metrics;  // /metrics: the whole page
  // Whether the header Authorization lets one see /metrics: UNAUTHENTICATED is 401, else 403.
  std::function<absl::Status(const std::string& authorization)> check_admin;
  std::function<absl::Status()> health;     // /healthz: OK is 200, else 503 with the message
  std::function<absl::Status()> readiness;  // /readyz: the same
};

// GET and HEAD of the three pages; anything else is 404 with a JSON error in OpenAI's shape.
//
// One request a connection. A connection has 5 s from its first byte read to the last one written,
// and may send 64 KiB: a slow or endless client costs one of 16 threads for that long, and the
// engine and gRPC nothing.
class HttpServer {
 public:
  // `listen`: HOST:PORT, port 0: any free one. `files`: the port speaks TLS where they name a
  // certificate.
  // Errors  UNAVAILABLE: cannot be listened on; those of CheckTlsFiles
  static absl::StatusOr<std::unique_ptr<HttpServer>> Open(const std::string& listen,
                                                          HttpPages pages,
                                                          const TlsFiles& files = {});
  // Cuts what is being read or written.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int Port() const;

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_SERVER_H_
