// Temporary certificates for tests.
#ifndef LSSAR_TESTS_SERVER_CERTIFICATES_H_
#define LSSAR_TESTS_SERVER_CERTIFICATES_H_

#include <string>

namespace lssar {

// PEM text.
struct Certificate {
  std::string certificate;
  std::string key;
};

// A new root.
Certificate MakeAuthority(const std::string& name);
// A certificate signed by `authority` for localhost and 127.0.0.1, with Subject `name`, valid since
// an hour and for `valid_for_s` seconds more.
Certificate MakeCertificate(const std::string& name, const Certificate& authority,
                            long valid_for_s = 24 * 3600);

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_CERTIFICATES_H_
