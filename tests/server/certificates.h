// Throw-away certificates for tests.
#ifndef LSSAR_TESTS_SERVER_CERTIFICATES_H_
#define LSSAR_TESTS_SERVER_CERTIFICATES_H_

#include <string>

namespace lssar {

// PEM texts.
struct Certificate {
  std::string certificate;
  std::string key;
};

// A root of its own.
Certificate MakeAuthority(const std::string& name);
// One that `authority` signed, for localhost and 127.0.0.1. `name`: what Subject says.
Certificate MakeCertificate(const std::string& name, const Certificate& authority);

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_CERTIFICATES_H_
