// SHA-256, for the hashes that name a checkpoint and a tokenizer.
#ifndef LSSAR_MODELS_SHA256_H_
#define LSSAR_MODELS_SHA256_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace lssar {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(std::string_view bytes);

  // First 16 hex digits of the digest of all that was added. Once.
  std::string ShortHex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_SHA256_H_
