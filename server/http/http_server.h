// The HTTP port: OpenAI's API, metrics and probes. server/http/README.md lists the paths.
#ifndef LSSAR_SERVER_HTTP_HTTP_SERVER_H_
#define LSSAR_SERVER_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/call_context.h"
#include "server/config/options.h"
#include "server/http/http_exchange.h"

namespace lssar {

class BatchStore;

// Pages that answer in every state of the server. Called on the I/O threads.
struct ProbeEndpoints {
  std::function<std::string()> metrics;  // /metrics: the whole page
  // Whether the header Authorization allows /metrics. Errors  UNAUTHENTICATED, PERMISSION_DENIED
  std::function<absl::Status(const std::string& authorization)> check_admin;
  std::function<absl::Status()> health;     // /healthz: OK is 200, else 503 with the message
  std::function<absl::Status()> readiness;  // /readyz: the same
};

class HttpServer {
 public:
  // Listens on options.http_listen, with TLS unless `certificates` is null. What `parts`, `pages`
  // and `certificates` refer to outlives the server, as does `batches`; null: no files and batches.
  // Errors  UNAVAILABLE: cannot be listened on
  static absl::StatusOr<std::unique_ptr<HttpServer>> Open(const ServerOptions& options,
                                                          ProbeEndpoints pages,
                                                          const ServiceContext& parts,
                                                          TlsCertificates* certificates,
                                                          BatchStore* batches = nullptr);
  // Closes all connections. Requires  no call of the engine is left
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int Port() const;

  // Answers a request that comes from no connection, and whose head has been checked: a row of a
  // batch.
  void Answer(std::shared_ptr<HttpExchange> exchange);

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_SERVER_H_
