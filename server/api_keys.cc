#include "server/api_keys.h"

#include <openssl/crypto.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

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

  absl::Status Read(const CLI::ConfigItem& item) {
    if (item.inputs.size() != 1) return Invalid(StrCat(item.name, " must have one value"));
    const std::string& value = item.inputs[0];
    if (item.name == "key" || item.name == "sha256") return ReadSecret(item.name, value);
    if (item.name == "role") return ReadRole(value);
    if (item.name == "max-concurrent") return ReadLimit(item, &key_.limits.max_concurrent);
    if (item.name == "requests-per-minute") {
      return ReadLimit(item, &key_.limits.requests_per_minute);
    }
    if (item.name == "tokens-per-minute") return ReadLimit(item, &key_.limits.tokens_per_minute);
    // The message omits the name: a key alone on a line is parsed as a name.
    return Invalid(
        "unknown entry; the entries are key, sha256, role, max-concurrent, "
        "requests-per-minute, tokens-per-minute");
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

  absl::Status ReadSecret(const std::string& name, const std::string& value) {
    if (std::exchange(has_secret_, true)) return Invalid("set either key or sha256, not both");
    if (name == "key") {
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

  absl::Status ReadRole(const std::string& value) {
    if (value != "user" && value != "admin") {
      return Invalid(StrCat("role is \"", value, "\"; it must be \"user\" or \"admin\""));
    }
    key_.role = value == "admin" ? KeyRole::kAdmin : KeyRole::kUser;
    return absl::OkStatus();
  }

  template <typename Int>
  absl::Status ReadLimit(const CLI::ConfigItem& item, Int* limit) {
    constexpr Int kMax = std::numeric_limits<Int>::max();
    if (absl::SimpleAtoi(item.inputs[0], limit) && *limit >= 0) return absl::OkStatus();
    return Invalid(StrCat(item.name, " must be a whole number in [0, ", kMax, "]"));
  }

  const std::string section_;
  ApiKey key_;
  bool has_secret_ = false;
};

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Parse(const std::string& text) {
  std::vector<CLI::ConfigItem> items;
  try {
    std::istringstream stream(text);
    items = CLI::ConfigTOML().from_config(stream);
  } catch (const CLI::Error&) {  // its message may quote a key
    return absl::InvalidArgumentError("the file is not valid TOML");
  }
  std::map<std::string, KeyReader> sections;
  for (const CLI::ConfigItem& item : items) {
    if (item.parents.size() != 1 || !IsName(item.parents[0])) {
      return absl::InvalidArgumentError(StrCat("every entry must be in a section [NAME] of 1 to ",
                                               kMaxNameBytes,
                                               " characters A-Z, a-z, 0-9, _ and -"));
    }
    const std::string& section = item.parents[0];
    if (item.name == "++") {  // start of a section
      if (!sections.try_emplace(section, section).second) {
        return InvalidEntry(section, "the section is defined twice");
      }
    } else if (item.name != "--") {  // not the end of a section
      RETURN_IF_ERROR(sections.at(section).Read(item));
    }
  }
  ApiKeys keys;
  std::map<Sha256::Digest, std::string> names;
  for (auto& [section, reader] : sections) {
    ASSIGN_OR_RETURN(ApiKey key, reader.Finish());
    const auto [other, is_first] = names.emplace(key.digest, section);
    if (!is_first)
      return InvalidEntry(section, StrCat("has the same key as [", other->second, "]"));
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
