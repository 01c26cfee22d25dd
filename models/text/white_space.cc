#include "models/text/white_space.h"

#include <cstddef>
#include <cstdint>

namespace lssar {
namespace {

// The three below hold for every character for which str.isspace() of Python 3.11 is true.
bool IsAsciiSpace(uint8_t c) { return (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= ' '); }

// U+0085 and U+00A0.
bool IsSpaceOfTwo(uint8_t first, uint8_t second) {
  return first == 0xC2 && (second == 0x85 || second == 0xA0);
}

// U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F and U+3000.
bool IsSpaceOfThree(uint8_t first, uint8_t second, uint8_t third) {
  switch (first) {
    case 0xE1: return second == 0x9A && third == 0x80;
    case 0xE2:
      if (second == 0x81) return third == 0x9F;
      return second == 0x80 &&
             ((third >= 0x80 && third <= 0x8A) || third == 0xA8 || third == 0xA9 || third == 0xAF);
    case 0xE3: return second == 0x80 && third == 0x80;
    default: return false;
  }
}

// The bytes of the white space that begins at `at`; 0: none does.
size_t SpaceAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return uint8_t(text[at + i]); };
  if (byte(0) < 0x80) return IsAsciiSpace(byte(0)) ? 1 : 0;
  const size_t left = text.size() - at;
  if (left >= 2 && IsSpaceOfTwo(byte(0), byte(1))) return 2;
  return left >= 3 && IsSpaceOfThree(byte(0), byte(1), byte(2)) ? 3 : 0;
}

}  // namespace

std::string_view TrimLeft(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t num_bytes = SpaceAt(text, at);
    if (num_bytes == 0) break;
    at += num_bytes;
  }
  return text.substr(at);
}

std::string_view TrimRight(std::string_view text) {
  while (!text.empty()) {
    const size_t size = text.size();
    size_t num_bytes = 1;
    if (uint8_t(text.back()) >= 0x80) {
      num_bytes = size >= 2 && SpaceAt(text, size - 2) == 2 ? 2 : 3;
    }
    if (num_bytes > size || SpaceAt(text, size - num_bytes) != num_bytes) break;
    text.remove_suffix(num_bytes);
  }
  return text;
}

}  // namespace lssar
