// UTF-8, one unit at a time: what the streaming decoder and the input checks are made of.
#ifndef LSSAR_MODELS_UTF8_H_
#define LSSAR_MODELS_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lssar {

// U+FFFD, what a byte that is not UTF-8 turns into.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind : uint8_t {
  kCharacter,   // one whole, well-formed character
  kIllFormed,   // a maximal subpart that no further byte can repair
  kUnfinished,  // the text ends inside what may become a character
};

struct Utf8Unit {
  Utf8Kind kind = Utf8Kind::kCharacter;
  size_t num_bytes = 0;  // 1 to 4
};

// The unit that `text` starts with.
// Requires  text is not empty
// Source    The Unicode Standard, table 3-7 and "U+FFFD substitution of maximal subparts" (3.9)
Utf8Unit NextUtf8(std::string_view text);

}  // namespace lssar

#endif  // LSSAR_MODELS_UTF8_H_
