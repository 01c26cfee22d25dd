// TLS of the connections that are not gRPC's: those of the HTTP port.
#ifndef LSSAR_SERVER_TLS_CONTEXT_H_
#define LSSAR_SERVER_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/request.h"
#include "server/tls.h"

namespace lssar {

// The server's certificate and key, read again when a file changes. Clients need no certificate:
// those who probe health have none, and /metrics asks for a key.
class TlsContext {
 public:
  // Errors  as MakeCredentials. Requires  files.HasTls()
  static absl::StatusOr<std::unique_ptr<TlsContext>> Open(const TlsFiles& files);

  // Of the files as they were a second ago at most; where they are of no use by now, of the last
  // ones that were. Any thread.
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

#endif  // LSSAR_SERVER_TLS_CONTEXT_H_
