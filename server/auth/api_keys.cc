#include "server/auth/api_keys.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "runtime/limits.h"
#include "server/config/toml_file.h"

namespace lssar {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMinKeyBytes = 16;
constexpr size_t kMaxKeyBytes = 256;

Sha256::Digest DigestOf(std::string_view key) {
  Sha256 sha256;
  sha256.Add(key);
  return sha256.Finish();
}

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
         });
}

absl::Status InvalidEntry(const std::string& section, const std::string& sentence) {
  return absl::InvalidArgumentError(StrCat("[", section, "]: ", sentence));
}

// Collects the entries of one section.
class KeyReader {
 public:
  explicit KeyReader(std::string section) : section_(std::move(section)) {}

  absl::Status Read(const TomlEntry& item) {
    if (item.name == "key" || item.name == "sha256") return ReadSecret(item);
    if (item.name == "role") return ReadRole(item);
    if (item.name == "max-concurrent") return ReadLimit(item, &key_.limits.max_concurrent);
    if (item.name == "max-sequences") return ReadLimit(item, &key_.limits.max_sequences.emplace());
    if (item.name == "max-queued") return ReadLimit(item, &key_.limits.max_queued.emplace());
    if (item.name == "max-priority") return ReadPriority(item);
    if (item.name == "requests-per-minute") {
      return ReadLimit(item, &key_.limits.requests_per_minute);
    }
    if (item.name == "tokens-per-minute") return ReadLimit(item, &key_.limits.tokens_per_minute);
    // The message omits the name, which may be a key in the wrong place.
    return Invalid(
        "unknown entry; the entries are key, sha256, role, max-concurrent, max-sequences, "
        "max-queued, max-priority, requests-per-minute, tokens-per-minute");
  }

  absl::StatusOr<ApiKey> Finish() {
    if (!has_secret_) return Invalid("key or sha256 is missing");
    key_.name = section_;
    return std::move(key_);
  }

 private:
  absl::Status Invalid(const std::string& sentence) const {
    return InvalidEntry(section_, sentence);
  }

  absl::Status ReadSecret(const TomlEntry& item) {
    if (std::exchange(has_secret_, true)) return Invalid("set either key or sha256, not both");
    if (item.kind != TomlKind::kText) return Invalid(StrCat(item.name, " must be in quotes"));
    const std::string& value = item.value;
    if (item.name == "key") {
      const bool is_printable = std::all_of(value.begin(), value.end(), [](char c) {
        return absl::ascii_isgraph(static_cast<unsigned char>(c));
      });
      if (!is_printable || value.size() < kMinKeyBytes || value.size() > kMaxKeyBytes) {
        return Invalid(StrCat("key must have ", kMinKeyBytes, " to ", kMaxKeyBytes,
                              " printable ASCII characters and no space"));
      }
      key_.digest = DigestOf(value);
      return absl::OkStatus();
    }
    const bool is_hex = std::all_of(value.begin(), value.end(), [](char c) {
      return absl::ascii_isxdigit(static_cast<unsigned char>(c));
    });
    if (!is_hex || value.size() != 2 * key_.digest.size()) {
      return Invalid("sha256 must be the 64 hex digits of the key's SHA-256");
    }
    const std::string bytes = absl::HexStringToBytes(value);
    std::copy(bytes.begin(), bytes.end(), key_.digest.begin());
    return absl::OkStatus();
  }

  absl::Status ReadRole(const TomlEntry& item) {
    if (item.kind != TomlKind::kText || (item.value != "user" && item.value != "admin")) {
      // Without the value, which may be a key in the wrong place.
      return Invalid("role must be \"user\" or \"admin\"");
    }
    key_.role = item.value == "admin" ? KeyRole::kAdmin : KeyRole::kUser;
    return absl::OkStatus();
  }

  template <typename Int>
  absl::Status ReadLimit(const TomlEntry& item, Int* limit) {
    constexpr Int kMax = std::numeric_limits<Int>::max();
    if (item.kind == TomlKind::kNumber && absl::SimpleAtoi(item.value, limit) && *limit >= 0) {
      return absl::OkStatus();
    }
    return Invalid(StrCat(item.name, " must be a whole number in [0, ", kMax, "]"));
  }

  absl::Status ReadPriority(const TomlEntry& item) {
    int priority = 0;
    if (item.kind != TomlKind::kNumber || !absl::SimpleAtoi(item.value, &priority) ||
        std::abs(priority) > limits::kMaxPriority) {
      return Invalid(StrCat(item.name, " must be a whole number in [-", limits::kMaxPriority, ", ",
                            limits::kMaxPriority, "]"));
    }
    key_.limits.max_priority = priority;
    return absl::OkStatus();
  }

  const std::string section_;
  ApiKey key_;
  bool has_secret_ = false;
};

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Parse(const std::string& text) {
  ASSIGN_OR_RETURN(const std::vector<TomlSection> sections, ParseToml(text, TomlErrors::kHideText));
  ApiKeys keys;
  keys.keys_.reserve(sections.size());
  std::map<Sha256::Digest, std::string_view> names;
  for (const TomlSection& section : sections) {
    const bool is_nested =
        std::any_of(section.entries.begin(), section.entries.end(),
                    [](const TomlEntry& entry) { return entry.kind == TomlKind::kOther; });
    if (!IsName(section.name) || is_nested) {
      return absl::InvalidArgumentError(StrCat("every entry must be in a section [NAME] of 1 to ",
                                               kMaxNameBytes,
                                               " characters A-Z, a-z, 0-9, _ and -, and have one "
                                               "value"));
    }
    KeyReader reader(section.name);
    for (const TomlEntry& entry : section.entries) RETURN_IF_ERROR(reader.Read(entry));
    ASSIGN_OR_RETURN(ApiKey key, reader.Finish());
    const auto [other, is_first] = names.emplace(key.digest, section.name);
    if (!is_first) {
      return InvalidEntry(section.name, StrCat("has the same key as [", other->second, "]"));
    }
    keys.keys_.push_back(std::move(key));
  }
  if (keys.keys_.empty()) return absl::InvalidArgumentError("the file contains no key");
  return keys;
}

const ApiKey* ApiKeys::Find(std::string_view key) const {
  const Sha256::Digest digest = DigestOf(key);
  const ApiKey* found = nullptr;
  for (const ApiKey& known : keys_) {
    if (CRYPTO_memcmp(known.digest.data(), digest.data(), digest.size()) == 0) found = &known;
  }
  return found;
}

}  // namespace lssar
