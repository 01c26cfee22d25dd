// JSON of requests, read strictly, and of replies, written as text.
#ifndef LSSAR_SERVER_HTTP_JSON_TEXT_H_
#define LSSAR_SERVER_HTTP_JSON_TEXT_H_

#include <charconv>
#include <cmath>
#include <concepts>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace lssar {

// Levels of objects and arrays in one body.
inline constexpr int kMaxJsonDepth = 32;

// Errors  INVALID_ARGUMENT: not JSON (names the byte), not UTF-8, a lone surrogate, NaN, a key that
//         an object has twice, nesting beyond kMaxJsonDepth, more values or keys than limits.h has
//         CANCELLED: should_stop, which is polled, returned true
absl::StatusOr<nlohmann::json> ParseJson(
    std::string_view text, absl::FunctionRef<bool()> should_stop = [] { return false; });

// The value at `path`, keys of objects and positions in lists ("0") within each other, as JSON text
// in the order of its keys.
// Linear in the body: nlohmann's ordered objects are searched from their first key on.
// Requires  ParseJson accepts `text` and finds the path in it
std::string JsonAt(std::string_view text, std::span<const std::string> path);

// Appends `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(std::string_view text, std::string* out);

// Appends the shortest digits that read back as `number`; null for NaN and infinities.
template <typename Number>
requires std::integral<Number> || std::floating_point<Number>
void AppendJsonNumber(Number number, std::string* out) {
  if constexpr (std::floating_point<Number>) {
    if (!std::isfinite(number)) {
      *out += "null";
      return;
    }
  }
  char digits[32];
  out->append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
}

// `text` as a JSON string.
std::string JsonString(std::string_view text);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_JSON_TEXT_H_
