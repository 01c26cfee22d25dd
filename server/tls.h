// TLS of the ports: certificates from files, read again when they change.
#ifndef LSSAR_SERVER_TLS_H_
#define LSSAR_SERVER_TLS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar {

// Paths of PEM files.
struct TlsFiles {
  std::string certificate;  // the server's, then what leads to its root; empty: no TLS
  std::string key;
  std::string
      client_ca;  // roots of clients' certificates, which are then required; empty: none are

  bool HasTls() const { return !certificate.empty(); }
};

// What a handshake alone would say.
// Errors  NOT_FOUND: a file cannot be read; INVALID_ARGUMENT: it holds no certificate or key, or
//         the two do not belong together
absl::Status CheckTlsFiles(const TlsFiles& files);

// Of the gRPC port: TLS 1.2 or 1.3. A changed file is served to the connections that come a second
// later; those that stand stay. While certificate and key do not belong together new connections
// fail. Errors  as CheckTlsFiles
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(const TlsFiles& files);

}  // namespace lssar

#endif  // LSSAR_SERVER_TLS_H_
