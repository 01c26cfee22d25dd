#include "tests/server/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <memory>

#include "base/check.h"

namespace lssar {
namespace {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using X509Pointer = std::unique_ptr<X509, Free<X509_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;

std::string TextOf(BIO* bio) {
  char* bytes = nullptr;
  const long num_bytes = BIO_get_mem_data(bio, &bytes);
  return std::string(bytes, size_t(num_bytes));
}

void AddExtension(X509* certificate, X509* issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value);
  LSSAR_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

// Signed by `authority`; self-signed, as an authority, if that is null.
Certificate Make(const std::string& name, const Certificate* authority, long valid_for_s) {
  static std::atomic<long> serial = 1;
  const Key key(EVP_EC_gen("P-256"));
  const X509Pointer certificate(X509_new());
  LSSAR_CHECK(key != nullptr && certificate != nullptr);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_for_s);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);

  X509Pointer issuer;
  Key issuer_key;
  if (authority != nullptr) {
    const Bio text(BIO_new_mem_buf(authority->certificate.data(), -1));
    issuer.reset(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr));
    const Bio key_text(BIO_new_mem_buf(authority->key.data(), -1));
    issuer_key.reset(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
    AddExtension(certificate.get(), issuer.get(), NID_subject_alt_name,
                 "DNS:localhost,IP:127.0.0.1");
  } else {
    AddExtension(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  }
  X509* signer = issuer != nullptr ? issuer.get() : certificate.get();
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(signer));
  EVP_PKEY* signing_key = issuer_key != nullptr ? issuer_key.get() : key.get();
  LSSAR_CHECK(X509_sign(certificate.get(), signing_key, EVP_sha256()) > 0);

  const Bio certificate_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_mem()));
  LSSAR_CHECK(PEM_write_bio_X509(certificate_text.get(), certificate.get()) == 1);
  LSSAR_CHECK(PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                       nullptr) == 1);
  return {.certificate = TextOf(certificate_text.get()), .key = TextOf(key_text.get())};
}

}  // namespace

Certificate MakeAuthority(const std::string& name) { return Make(name, nullptr, 24 * 3600); }

Certificate MakeCertificate(const std::string& name, const Certificate& authority,
                            long valid_for_s) {
  return Make(name, &authority, valid_for_s);
}

}  // namespace lssar
