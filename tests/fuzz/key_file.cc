// ApiKeys::Parse: names, roles and limits are in range, a key that the file has is found, and no
// error message contains any part of a key.
// Input   the beginning of a key file
#include <algorithm>
#include <set>
#include <string>

#include "server/auth/api_keys.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

constexpr char kKey[] = "k0-SECRETSECRETSECRETSECRET";

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

}  // namespace

LSSAR_FUZZ_TARGET(key_file) {
  const std::string text = std::string(TextOf(bytes)) + "\n[fuzz-end]\nkey = \"" + kKey + "\"\n";
  const auto keys = ApiKeys::Parse(text);
  if (!keys.ok()) {
    // Names are quoted; the fuzzer may make one of that word.
    LSSAR_CHECK(TextOf(bytes).find("SECRET") != std::string_view::npos ||
                keys.status().message().find("SECRET") == std::string_view::npos);
    return;
  }
  std::set<std::string> names;
  bool has_end = false;
  for (const ApiKey& key : keys->All()) {
    LSSAR_CHECK(IsName(key.name));
    LSSAR_CHECK(names.insert(key.name).second);
    LSSAR_CHECK(key.limits.max_concurrent >= 0 && key.limits.requests_per_minute >= 0 &&
                key.limits.tokens_per_minute >= 0);
    has_end = has_end || key.name == "fuzz-end";
  }
  if (FaultIsPlanted() && keys->All().size() == 2) has_end = false;
  LSSAR_CHECK(!has_end == (keys->Find(kKey) == nullptr));
  LSSAR_CHECK(keys->Find("k0-SECRET") == nullptr);
}

}  // namespace lssar
