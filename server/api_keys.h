// Who may call: the keys of --api-keys, and what each is allowed.
#ifndef LSSAR_SERVER_API_KEYS_H_
#define LSSAR_SERVER_API_KEYS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/sha256.h"

namespace lssar {

// An admin may do what a user may.
enum class KeyRole : uint8_t { kUser, kAdmin };

// 0: no limit.
struct KeyLimits {
  int max_concurrent = 0;  // calls inside at once
  int requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and outputs
};

// The key itself is never kept.
struct ApiKey {
  std::string name;
  KeyRole role = KeyRole::kUser;
  KeyLimits limits;
  Sha256::Digest digest = {};
};

class ApiKeys {
 public:
  // Of a TOML text with a section for each key:
  //
  //   [alice]                        # a name for the log, 1 to 64 of [A-Za-z0-9_-]
  //   sha256 = "9f86d081884c7d65..." # of the key, 64 hex digits; or key = "...", the key itself
  //   role = "admin"                 # default "user"
  //   max-concurrent = 4             # these three: default 0, no limit
  //   requests-per-minute = 60
  //   tokens-per-minute = 100000
  //
  // A key is 16 to 256 printable ASCII characters without spaces.
  // Errors  INVALID_ARGUMENT: names section and entry, and never tells anything of a key
  static absl::StatusOr<ApiKeys> Parse(const std::string& text);

  // Null: no such key. Takes as long for every key of the same length, known or not.
  const ApiKey* Find(std::string_view key) const;

  const std::vector<ApiKey>& All() const { return keys_; }

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_KEYS_H_
