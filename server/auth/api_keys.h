// Parses the file of --api-keys: the keys with their roles and limits.
#ifndef LSSAR_SERVER_AUTH_API_KEYS_H_
#define LSSAR_SERVER_AUTH_API_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sha256.h"
#include "runtime/limits.h"

namespace lssar {

// An admin may do everything that a user may do.
enum class KeyRole : uint8_t { kUser, kAdmin };

// 0: no limit. nullopt: the server's default (ClientLimits).
struct KeyLimits {
  int max_concurrent = 0;  // running calls
  std::optional<int> max_sequences = {};
  std::optional<int> max_queued = {};
  std::optional<int> max_priority = {};
  int requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and outputs
};

// The server's limits of one client: of a key that does not set its own, and of an address where
// there are no keys. 0: no limit.
struct ClientLimits {
  int max_sequences = 0;  // of its requests, waiting or running, at the same time
  int max_queued = 0;     // its requests that wait
  int max_priority = limits::kMaxPriority;
};

// The key itself is not stored, only its digest.
struct ApiKey {
  std::string name;
  KeyRole role = KeyRole::kUser;
  KeyLimits limits;
  Sha256::Digest digest = {};
};

class ApiKeys {
 public:
  // Parses TOML text with one section per key:
  //
  //   [alice]                        # name in log lines, 1 to 64 of [A-Za-z0-9_-]
  //   sha256 = "9f86d081884c7d65..." # SHA-256 of the key, 64 hex digits; or key = "..."
  //   role = "admin"                 # default "user"
  //   max-concurrent = 4             # limits; default 0: no limit
  //   max-sequences = 16             # default of these three: those of the server
  //   max-queued = 8
  //   max-priority = 0               # in [-10, 10]
  //   requests-per-minute = 60
  //   tokens-per-minute = 100000
  //
  // A key is 16 to 256 printable ASCII characters without spaces.
  // Errors  INVALID_ARGUMENT: names section and entry, and never contains any part of a key
  static absl::StatusOr<ApiKeys> Parse(const std::string& text);

  // Null if the key is unknown. The time does not depend on whether the key is known.
  const ApiKey* Find(std::string_view key) const;

  const std::vector<ApiKey>& All() const { return keys_; }

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_AUTH_API_KEYS_H_
