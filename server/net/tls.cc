#include "server/net/tls.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/error_details.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/ops/log.h"

namespace lssar {
namespace {

constexpr auto kCheckInterval = std::chrono::seconds(1);
constexpr auto kWarningInterval = std::chrono::hours(24);
constexpr absl::Duration kWarningTime = absl::Hours(30 * 24);  // before the end

// Those of TLS 1.2: with forward secrecy and authenticated encryption, as the gRPC port has them.
constexpr const char* kCipherSuites = "ECDHE+AESGCM:ECDHE+CHACHA20";

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Certificate = std::unique_ptr<X509, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;

// Rejects a key with a passphrase; OpenSSL would otherwise prompt on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

std::unique_ptr<BIO, Free> Reader(const std::string& pem) {
  return std::unique_ptr<BIO, Free>(BIO_new_mem_buf(pem.data(), int(pem.size())));
}

// InfinitePast: no time.
absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts = {};
  if (time == nullptr || ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

std::string ToText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

int Count(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// One of the flags with its file.
class PemFile {
 public:
  PemFile(std::string_view flag, const std::string& path) : flag_(flag), path_(path) {}

  absl::Status Error(std::string_view problem) const {
    return absl::InvalidArgumentError(StrCat(flag_, " ", path_, " ", problem));
  }

  // Detects a file that is being written. OpenSSL would ignore the start of a further block.
  absl::StatusOr<std::string> Read() const {
    absl::StatusOr<std::string> pem = ReadWholeFile(path_, kMaxPemFileBytes);
    if (!pem.ok()) return WithPrefix(StrCat(flag_, " "), pem.status());
    if (pem->find('\0') != std::string::npos) return Error("contains a NUL byte");
    if (Count(*pem, "-----BEGIN") != Count(*pem, "-----END")) {
      return Error("ends in the middle of a PEM block: it is not completely written");
    }
    return pem;
  }

  absl::StatusOr<std::vector<Certificate>> Certificates(const std::string& pem) const {
    const auto reader = Reader(pem);
    std::vector<Certificate> certificates;
    while (X509* certificate = PEM_read_bio_X509(reader.get(), nullptr, NoPassphrase, nullptr)) {
      certificates.emplace_back(certificate);
    }
    const unsigned long error = ERR_peek_last_error();
    const bool is_end = ERR_GET_LIB(error) == ERR_LIB_PEM &&  // OpenSSL says the end like this
                        ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    if (certificates.empty()) return Error("contains no PEM certificate");
    if (!is_end) return Error(StrCat("has a damaged certificate after ", certificates.size()));
    return certificates;
  }

  absl::StatusOr<Key> PrivateKey(const std::string& pem) const {
    Key key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassphrase, nullptr));
    if (key == nullptr) return Error("contains no PEM key without a passphrase");
    return key;
  }

  // "...: OpenSSL refuses it: ee key too small".
  absl::Status Refused() const {
    const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
    return Error(StrCat("is refused by OpenSSL: ", reason == nullptr ? "no reason given" : reason));
  }

 private:
  const std::string_view flag_;
  const std::string& path_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsMaterial>> ReadTlsMaterial(const TlsFiles& files) {
  ERR_clear_error();
  // gRPC would report leftover entries as its own errors.
  const absl::Cleanup clear = [] { ERR_clear_error(); };
  auto material = std::make_shared<TlsMaterial>();
  const PemFile certificate_file("--tls-cert", files.certificate);
  const PemFile key_file("--tls-key", files.key);
  ASSIGN_OR_RETURN(material->certificate, certificate_file.Read());
  ASSIGN_OR_RETURN(material->key, key_file.Read());
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                   certificate_file.Certificates(material->certificate));
  ASSIGN_OR_RETURN(const Key key, key_file.PrivateKey(material->key));
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    return key_file.Error(StrCat("does not match --tls-cert ", files.certificate));
  }
  std::vector<Certificate> client_roots;
  if (!files.client_ca.empty()) {
    const PemFile roots("--tls-client-ca", files.client_ca);
    ASSIGN_OR_RETURN(material->client_ca, roots.Read());
    ASSIGN_OR_RETURN(client_roots, roots.Certificates(material->client_ca));
  }
  for (const Certificate& certificate : chain) {
    material->not_before =
        std::max(material->not_before, ToTime(X509_get0_notBefore(certificate.get())));
    material->not_after =
        std::min(material->not_after, ToTime(X509_get0_notAfter(certificate.get())));
  }

  material->context = std::shared_ptr<SSL_CTX>(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  SSL_CTX* const context = material->context.get();
  if (context == nullptr) return absl::ResourceExhaustedError("no memory for TLS");
  LSSAR_CHECK(SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1);
  LSSAR_CHECK(SSL_CTX_set_cipher_list(context, kCipherSuites) == 1);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  if (!client_roots.empty()) {
    for (const Certificate& root : client_roots) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context), root.get());
      SSL_CTX_add_client_CA(context, root.get());
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    // Without one, OpenSSL refuses to resume sessions in which a certificate was asked for.
    constexpr unsigned char kSessions[] = "lssar";
    SSL_CTX_set_session_id_context(context, kSessions, sizeof(kSessions) - 1);
  }
  // These apply the machine's policy, such as a minimum size of keys.
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1) return certificate_file.Refused();
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) return certificate_file.Refused();
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) return key_file.Refused();
  return material;
}

std::string ValidityWarning(const TlsFiles& files, const TlsMaterial& material, absl::Time now) {
  const auto warning = [&files](std::string_view problem, absl::Time time) {
    return StrCat("--tls-cert ", files.certificate, " ", problem, " ", ToText(time));
  };
  if (now < material.not_before) return warning("is not valid before", material.not_before);
  if (now >= material.not_after) {
    return warning("has expired, and clients refuse it: it was valid until", material.not_after);
  }
  if (now < material.not_after - kWarningTime) return "";
  return warning("expires soon: it is valid until", material.not_after);
}

TlsCertificates::TlsCertificates(const TlsFiles& files, const Log* log)
    : files_(files),
      log_(log),
      watch_({files.certificate, files.key, files.client_ca}, kCheckInterval) {}

absl::StatusOr<std::unique_ptr<TlsCertificates>> TlsCertificates::Open(const TlsFiles& files,
                                                                       const Log* log) {
  LSSAR_CHECK(files.HasTls());
  std::unique_ptr<TlsCertificates> certificates(new TlsCertificates(files, log));
  ASSIGN_OR_RETURN(certificates->material_, ReadTlsMaterial(files));
  certificates->WarnOfValidity();
  return certificates;
}

void TlsCertificates::WarnOfValidity() {
  next_warning_ = Clock::now() + kWarningInterval;
  const std::string warning = ValidityWarning(files_, *material_, absl::Now());
  if (log_ != nullptr && !warning.empty()) log_->Warning("tls", {{"message", warning}});
}

void TlsCertificates::Reload() {
  {
    const std::lock_guard lock(mutex_);
    watch_.ForceRead();
  }
  Current();
}

std::shared_ptr<const TlsMaterial> TlsCertificates::Current() {
  const std::lock_guard lock(mutex_);
  if (Clock::now() >= next_warning_) WarnOfValidity();
  if (!watch_.NeedsRead(Clock::now())) return material_;
  auto material = ReadTlsMaterial(files_);
  const bool is_new = watch_.Finish(material.status());
  if (material.ok()) material_ = *std::move(material);
  if (log_ == nullptr || !is_new) return material_;
  if (material.ok()) {
    log_->Info("tls", {{"message", "the certificate that was read is in force"}});
    WarnOfValidity();
  } else {
    log_->Error("tls", {{"message", StrCat(material.status().message(),
                                           "; the certificate before it stays in force")}});
  }
  return material_;
}

// What gRPC asks when a connection is opened.
struct TlsCertificates::Fetcher {
  TlsCertificates* certificates;
  std::shared_ptr<const TlsMaterial> served;  // what gRPC has

  // Called under a lock of the port.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* fetcher, grpc_ssl_server_certificate_config** config) {
    auto& self = *static_cast<Fetcher*>(fetcher);
    std::shared_ptr<const TlsMaterial> material = self.certificates->Current();
    if (material == self.served) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = material->key.c_str(),
                                             .cert_chain = material->certificate.c_str()};
    // gRPC insists on roots even where it asks clients for no certificate; it uses none then.
    const std::string& roots =
        material->client_ca.empty() ? material->certificate : material->client_ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    self.served = std::move(material);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }
};

TlsCertificates::~TlsCertificates() = default;

// gRPC's C++ API reloads certificates by reading files itself, and aborts on an empty one. Its C
// API asks a callback for every new connection.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(TlsCertificates* certificates) : certificates_(certificates) {}

  // For servers that authenticate calls in gRPC; this one does not.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    LSSAR_CHECK(false);
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    certificates_->fetchers_.push_back(std::make_unique<TlsCertificates::Fetcher>(
        TlsCertificates::Fetcher{.certificates = certificates_, .served = nullptr}));
    grpc_server_credentials* const credentials = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            certificates_->RequiresClientCertificates()
                ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            TlsCertificates::Fetcher::Fetch, certificates_->fetchers_.back().get()));
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  TlsCertificates* const certificates_;
};

std::shared_ptr<grpc::ServerCredentials> MakeCredentials(TlsCertificates* certificates) {
  if (certificates == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<ReloadingCredentials>(certificates);
}

}  // namespace lssar
