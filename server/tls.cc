#include "server/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "kernels/str_cat.h"
#include "server/fields.h"

namespace lssar {
namespace {

constexpr unsigned int kRefreshSeconds = 1;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

// A key with a passphrase is refused rather than asked for on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<std::unique_ptr<BIO, Free>> OpenFile(const std::string& flag,
                                                    const std::string& path) {
  std::unique_ptr<BIO, Free> file(BIO_new_file(path.c_str(), "r"));
  if (file != nullptr) return file;
  return absl::NotFoundError(StrCat(flag, " ", path, ": the file cannot be read"));
}

absl::StatusOr<std::unique_ptr<X509, Free>> ReadCertificate(const std::string& flag,
                                                            const std::string& path) {
  auto file = OpenFile(flag, path);
  if (!file.ok()) return file.status();
  std::unique_ptr<X509, Free> certificate(
      PEM_read_bio_X509(file->get(), nullptr, NoPassphrase, nullptr));
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(StrCat(flag, " ", path, " holds no PEM certificate"));
}

// Leaves OpenSSL's own account of an error behind.
absl::Status CheckFiles(const TlsFiles& files) {
  auto certificate = ReadCertificate("--tls-cert", files.certificate);
  if (!certificate.ok()) return certificate.status();
  auto file = OpenFile("--tls-key", files.key);
  if (!file.ok()) return file.status();
  const std::unique_ptr<EVP_PKEY, Free> key(
      PEM_read_bio_PrivateKey(file->get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        StrCat("--tls-key ", files.key, " holds no PEM key without a passphrase"));
  }
  if (X509_check_private_key(certificate->get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        StrCat("--tls-key ", files.key, " is not the key of --tls-cert ", files.certificate));
  }
  if (files.client_ca.empty()) return absl::OkStatus();
  return ReadCertificate("--tls-client-ca", files.client_ca).status();
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files) {
  absl::Status status = CheckFiles(files);
  ERR_clear_error();  // gRPC takes what lies there for its own
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
