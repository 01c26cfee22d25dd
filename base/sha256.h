// SHA-256: identifies checkpoints and tokenizers, and stands for API keys.
#ifndef LSSAR_BASE_SHA256_H_
#define LSSAR_BASE_SHA256_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lssar {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(std::string_view bytes);

  // The hash of all added bytes. Call one of these, once.
  Digest Finish();
  std::string Hex();       // its 64 hex digits
  std::string ShortHex();  // the first 16

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace lssar

#endif  // LSSAR_BASE_SHA256_H_
