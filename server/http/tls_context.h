// TLS of the HTTP port's connections.
#ifndef LSSAR_SERVER_HTTP_TLS_CONTEXT_H_
#define LSSAR_SERVER_HTTP_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/clock.h"
#include "server/tls.h"

namespace lssar {

// The server's certificate and key, read again when a file changes. Clients need no certificate:
// health probes have none, and everything else asks for an API key.
class TlsContext {
 public:
  // Requires  files.HasTls()
  // Errors    as MakeCredentials
  static absl::StatusOr<std::unique_ptr<TlsContext>> Open(const TlsFiles& files);

  // Made from the files as they were at most a second ago, or from the last usable ones. Any
  // thread.
  std::shared_ptr<SSL_CTX> Current();

 private:
  explicit TlsContext(const TlsFiles& files) : files_(files) {}
  absl::Status Load();
  std::string Version() const;

  const TlsFiles files_;
  std::mutex mutex_;
  std::shared_ptr<SSL_CTX> context_;
  std::string version_;
  Clock::time_point checked_at_ = {};
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_TLS_CONTEXT_H_
