#include "server/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace lssar {
namespace {

constexpr unsigned int kRefreshSeconds = 1;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

// Rejects a key with a passphrase; OpenSSL would otherwise prompt on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<std::unique_ptr<BIO, Free>> OpenFile(const std::string& flag,
                                                    const std::string& path) {
  std::unique_ptr<BIO, Free> file(BIO_new_file(path.c_str(), "r"));
  if (file != nullptr) return file;
  return absl::NotFoundError(StrCat(flag, " ", path, ": the file cannot be read"));
}

absl::StatusOr<std::unique_ptr<X509, Free>> ReadCertificate(const std::string& flag,
                                                            const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, OpenFile(flag, path));
  std::unique_ptr<X509, Free> certificate(
      PEM_read_bio_X509(file.get(), nullptr, NoPassphrase, nullptr));
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(StrCat(flag, " ", path, " contains no PEM certificate"));
}

// Leaves entries in OpenSSL's error queue.
absl::Status CheckFiles(const TlsFiles& files) {
  ASSIGN_OR_RETURN(const auto certificate, ReadCertificate("--tls-cert", files.certificate));
  ASSIGN_OR_RETURN(const auto file, OpenFile("--tls-key", files.key));
  const std::unique_ptr<EVP_PKEY, Free> key(
      PEM_read_bio_PrivateKey(file.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        StrCat("--tls-key ", files.key, " contains no PEM key without a passphrase"));
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        StrCat("--tls-key ", files.key, " does not match --tls-cert ", files.certificate));
  }
  if (files.client_ca.empty()) return absl::OkStatus();
  return ReadCertificate("--tls-client-ca", files.client_ca).status();
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files) {
  absl::Status status = CheckFiles(files);
  ERR_clear_error();  // gRPC would report leftover entries as its own errors
  return status;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(const TlsFiles& files) {
  if (!files.HasTls()) return grpc::InsecureServerCredentials();
  RETURN_IF_ERROR(CheckTlsFiles(files));

  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<FileWatcherCertificateProvider>(files.key, files.certificate,
                                                       files.client_ca, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace lssar
