#include "base/random_id.h"

#include <openssl/rand.h>

#include <array>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace lssar {

std::string RandomId() {
  std::array<unsigned char, kRandomIdDigits / 2> bytes = {};
  LSSAR_CHECK(RAND_bytes(bytes.data(), int(bytes.size())) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace lssar
