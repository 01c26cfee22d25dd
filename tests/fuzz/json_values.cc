// Floats, strings and base64 in JSON: what is written reads back as it was.
// Input   the kind (one byte), then a float or double, a string, or bytes
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "base/utf8.h"
#include "server/http/json_text.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

template <typename Float>
void CheckFloat(std::span<const uint8_t> bytes) {
  Float value = 0;
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof(value)));
  std::string text;
  AppendJsonNumber(value, &text);
  if (FaultIsPlanted() && text.find("e-") != text.npos) text += '1';
  const auto json = ParseJson(text);
  LSSAR_CHECK(json.ok());
  if (!std::isfinite(value)) {
    LSSAR_CHECK(json->is_null());
  } else {
    LSSAR_CHECK(json->is_number() && json->get<Float>() == value);
  }
}

}  // namespace

LSSAR_FUZZ_TARGET(json_values) {
  if (bytes.empty()) return;
  const auto rest = bytes.subspan(1);
  const std::string_view text = TextOf(rest);
  switch (bytes[0] % 4) {
    case 0: return CheckFloat<float>(rest);
    case 1: return CheckFloat<double>(rest);
    case 2: {
      const auto json = ParseJson(JsonString(text));
      LSSAR_CHECK(json.ok() && json->is_string());
      if (!FindInvalidUtf8(text)) LSSAR_CHECK(json->get_ref<const std::string&>() == text);
      return;
    }
    default: {
      std::string decoded;
      const std::string encoded = absl::Base64Escape({text.data(), text.size()});
      LSSAR_CHECK(absl::Base64Unescape(encoded, &decoded) && decoded == text);
    }
  }
}

}  // namespace lssar
