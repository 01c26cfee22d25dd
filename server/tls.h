// TLS certificates of the ports, reloaded when their files change.
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
  std::string certificate;  // the server's, followed by its chain; empty: no TLS
  std::string key;
  std::string client_ca;  // roots of client certificates; empty: clients need no certificate

  bool HasTls() const { return !certificate.empty(); }
};

// Finds at startup what otherwise only the first handshake would report.
// Errors  NOT_FOUND: a file cannot be read
//         INVALID_ARGUMENT: a file has no certificate or key, or the two do not match
absl::Status CheckTlsFiles(const TlsFiles& files);

// Credentials of the gRPC port: TLS 1.2 or 1.3. A changed file applies to connections opened a
// second later; open connections stay. While certificate and key do not match, new connections
// fail.
// Errors  as CheckTlsFiles
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(const TlsFiles& files);

}  // namespace lssar

#endif  // LSSAR_SERVER_TLS_H_
