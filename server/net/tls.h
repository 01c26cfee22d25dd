// TLS certificates of the ports: checked before anything uses them, reloaded when their files
// change.
#ifndef LSSAR_SERVER_NET_TLS_H_
#define LSSAR_SERVER_NET_TLS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/file_version.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace lssar {

class Log;

// Paths of PEM files.
struct TlsFiles {
  std::string certificate;  // the server's, followed by its chain; empty: no TLS
  std::string key;
  std::string client_ca;  // roots of client certificates; empty: clients need none

  bool HasTls() const { return !certificate.empty(); }
};

// The content of the files: certificates and a key that belong together and that OpenSSL accepts.
struct TlsMaterial {
  std::string certificate, key, client_ca;  // PEM text
  // When the certificate and its chain are valid.
  absl::Time not_before = absl::InfinitePast(), not_after = absl::InfiniteFuture();
  // For HTTP. Certificate, chain and key; TLS 1.2 or later, and the cipher suites of the gRPC port.
  // With a client_ca it asks for a client certificate and verifies it; a client may have none.
  std::shared_ptr<ssl_ctx_st> context;
};

// What an operator should know of the certificate's validity, with its flag; empty: nothing. A
// certificate is worth a warning from 30 days before its end on.
std::string ValidityWarning(const TlsFiles& files, const TlsMaterial& material, absl::Time now);

// Reads and checks the files.
// Requires  files.HasTls()
// Errors    those of ReadWholeFile
//           INVALID_ARGUMENT: a file has no certificate or key, ends within one, or is refused by
//           OpenSSL; key and certificate do not match. Names the flag and the file
absl::StatusOr<std::shared_ptr<const TlsMaterial>> ReadTlsMaterial(const TlsFiles& files);

// The material in force. A changed file applies to connections opened a second later; open
// connections stay. If the changed files are bad, the old material stays in force, the reason is
// logged once, and the files are read again when they change. ValidityWarning is logged at the
// start, after a reload, and once a day.
//
// Threads  any
class TlsCertificates {
 public:
  // `log`, which must outlive the result, may be null.
  // Requires  files.HasTls()
  // Errors    as ReadTlsMaterial
  static absl::StatusOr<std::unique_ptr<TlsCertificates>> Open(const TlsFiles& files,
                                                               const Log* log);
  ~TlsCertificates();

  // Never null. Examines the files if that was more than a second ago.
  std::shared_ptr<const TlsMaterial> Current();

  // When the material in force expires.
  absl::Time End() { return Current()->not_after; }

  // Reads the files now, whether they have changed or not, and logs the result.
  void Reload();

  bool RequiresClientCertificates() const { return !files_.client_ca.empty(); }

 private:
  friend class ReloadingCredentials;
  struct Fetcher;

  TlsCertificates(const TlsFiles& files, const Log* log);
  // Under the lock.
  void WarnOfValidity();

  const TlsFiles files_;
  const Log* const log_;
  std::mutex mutex_;
  FileWatch watch_;
  std::shared_ptr<const TlsMaterial> material_;
  Clock::time_point next_warning_ = {};
  std::vector<std::unique_ptr<Fetcher>> fetchers_;  // one a port; gRPC's connections use them
};

// Credentials of the gRPC port: each new connection uses the material in force. gRPC never reads a
// file. Null `certificates`: no TLS; else they must outlive the gRPC server.
std::shared_ptr<grpc::ServerCredentials> MakeCredentials(TlsCertificates* certificates);

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_TLS_H_
