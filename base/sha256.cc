#include "base/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace lssar {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  LSSAR_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Add(std::string_view bytes) {
  LSSAR_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

Sha256::Digest Sha256::Finish() {
  Digest digest;
  unsigned int num_bytes = 0;
  LSSAR_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), &num_bytes) == 1);
  LSSAR_CHECK(num_bytes == digest.size());
  return digest;
}

std::string Sha256::Hex() {
  const Digest digest = Finish();
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::string Sha256::ShortHex() { return Hex().substr(0, 16); }

}  // namespace lssar
