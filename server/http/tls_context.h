// TLS of the HTTP port's connections.
#ifndef LSSAR_SERVER_HTTP_TLS_CONTEXT_H_
#define LSSAR_SERVER_HTTP_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <memory>

#include "server/net/tls.h"

namespace lssar {

// The server's certificate and key. Where client certificates are asked for, HttpServer refuses
// requests without one, except for health probes, which have none.
//
// Threads  any
class TlsContext {
 public:
  // `certificates` must outlive this.
  explicit TlsContext(TlsCertificates* certificates) : certificates_(certificates) {}

  // For a new connection.
  std::shared_ptr<SSL_CTX> Current() { return certificates_->Current()->context; }

 private:
  TlsCertificates* const certificates_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_TLS_CONTEXT_H_
