// Quotes a user's value in an error message.
#ifndef LSSAR_BASE_QUOTE_H_
#define LSSAR_BASE_QUOTE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace lssar {

// A longer value is cut here, at the end of a character.
inline constexpr size_t kMaxQuotedBytes = 64;

// `value` between double quotes. Bytes that are not UTF-8 become U+FFFD and control characters
// spaces. A long value is cut and its size named: "\"aaaa...\" (31457280 bytes)".
std::string Quote(std::string_view value);

// A message for a terminal or a log, without control characters and what is not UTF-8, as above.
std::string Printable(std::string_view message);

// The first `max_bytes` of a whole message, cut at the end of a character, with "..." behind it.
std::string Shorten(std::string_view message, size_t max_bytes);

}  // namespace lssar

#endif  // LSSAR_BASE_QUOTE_H_
