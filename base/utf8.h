// UTF-8, one unit at a time, for the streaming decoder and the input checks.
#ifndef LSSAR_BASE_UTF8_H_
#define LSSAR_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace lssar {

// U+FFFD, which replaces ill-formed bytes.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind : uint8_t {
  kCharacter,   // one complete, well-formed character
  kIllFormed,   // a maximal subpart that no further byte can complete
  kUnfinished,  // the text ends within a character
};

struct Utf8Unit {
  Utf8Kind kind = Utf8Kind::kCharacter;
  size_t num_bytes = 0;  // 1 to 4
};

// The first unit of `text`.
// Requires  text is not empty
// Source    The Unicode Standard, table 3-7 and "U+FFFD substitution of maximal subparts" (3.9)
Utf8Unit NextUtf8(std::string_view text);

// The offset of the first byte that is not UTF-8; nullopt: all of `text` is UTF-8.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// INVALID_ARGUMENT with the offset and the value of the first byte that is not UTF-8.
absl::Status CheckUtf8(std::string_view text);

// Characters of `text`, which is UTF-8.
int64_t NumCharacters(std::string_view text);

// The last space of `text`, at or after byte `from`, between two ASCII letters; npos: none.
size_t LastSpaceInWords(std::string_view text, size_t from);

}  // namespace lssar

#endif  // LSSAR_BASE_UTF8_H_
