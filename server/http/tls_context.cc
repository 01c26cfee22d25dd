#include "server/http/tls_context.h"

#include <openssl/err.h>

#include <chrono>
#include <utility>

#include "kernels/str_cat.h"
#include "server/fields.h"
#include "server/file_version.h"

namespace lssar {
namespace {

constexpr auto kCheckInterval = std::chrono::seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Open(const TlsFiles& files) {
  std::unique_ptr<TlsContext> context(new TlsContext(files));
  context->version_ = context->Version();
  if (absl::Status status = context->Load(); !status.ok()) return status;
  return context;
}

std::string TlsContext::Version() const {
  return StrCat(FileVersion(files_.certificate), " ", FileVersion(files_.key));
}

// Under the lock, except in Open.
absl::Status TlsContext::Load() {
  RETURN_IF_ERROR(CheckTlsFiles(files_));
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  const bool is_made =
      context != nullptr && SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) == 1 &&
      SSL_CTX_use_certificate_chain_file(context.get(), files_.certificate.c_str()) == 1 &&
      SSL_CTX_use_PrivateKey_file(context.get(), files_.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
      SSL_CTX_check_private_key(context.get()) == 1;
  ERR_clear_error();
  if (!is_made) {  // changed since CheckTlsFiles, or forbidden by the policy
    return absl::InvalidArgumentError(StrCat("--tls-cert ", files_.certificate, ", --tls-key ",
                                             files_.key, ": OpenSSL refuses them"));
  }
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  context_ = std::move(context);
  return absl::OkStatus();
}

std::shared_ptr<SSL_CTX> TlsContext::Current() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now - checked_at_ < kCheckInterval) return context_;
  checked_at_ = now;
  const std::string version = Version();
  // While certificate and key do not match the version stays the old one, so they are read again.
  if (version != version_ && Load().ok()) version_ = version;
  return context_;
}

}  // namespace lssar
