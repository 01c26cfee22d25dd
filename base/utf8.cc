#include "base/utf8.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// The length of a character by its first byte, and which second bytes may follow: the second byte
// alone shows overlong forms, surrogates and values beyond U+10FFFF.
struct LeadByte {
  size_t num_bytes = 0;  // 0: no character starts with it
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

constexpr LeadByte Lead(uint8_t b) {
  if (b < 0x80) return {.num_bytes = 1};
  if (b < 0xC2) return {.num_bytes = 0};
  if (b < 0xE0) return {.num_bytes = 2};
  if (b == 0xE0) return {.num_bytes = 3, .second_min = 0xA0};
  if (b == 0xED) return {.num_bytes = 3, .second_max = 0x9F};
  if (b < 0xF0) return {.num_bytes = 3};
  if (b == 0xF0) return {.num_bytes = 4, .second_min = 0x90};
  if (b < 0xF4) return {.num_bytes = 4};
  if (b == 0xF4) return {.num_bytes = 4, .second_max = 0x8F};
  return {.num_bytes = 0};
}

}  // namespace

Utf8Unit NextUtf8(std::string_view text) {
  LSSAR_CHECK(!text.empty());
  const LeadByte lead = Lead(uint8_t(text[0]));
  if (lead.num_bytes == 0) return {.kind = Utf8Kind::kIllFormed, .num_bytes = 1};
  for (size_t i = 1; i < lead.num_bytes; ++i) {
    if (i == text.size()) return {.kind = Utf8Kind::kUnfinished, .num_bytes = i};
    const uint8_t b = uint8_t(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (b < min || b > max) return {.kind = Utf8Kind::kIllFormed, .num_bytes = i};
  }
  return {.kind = Utf8Kind::kCharacter, .num_bytes = lead.num_bytes};
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Eight bytes of ASCII at once.
    for (uint64_t bytes; at + sizeof(bytes) <= text.size(); at += sizeof(bytes)) {
      std::memcpy(&bytes, text.data() + at, sizeof(bytes));
      if ((bytes & 0x8080'8080'8080'8080) != 0) break;
    }
    if (at == text.size()) break;
    const Utf8Unit unit = NextUtf8(text.substr(at));
    if (unit.kind != Utf8Kind::kCharacter) return at;
    at += unit.num_bytes;
  }
  return std::nullopt;
}

absl::Status CheckUtf8(std::string_view text) {
  const std::optional<size_t> at = FindInvalidUtf8(text);
  if (!at) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("text is not UTF-8: byte ", *at, " of ", text.size(),
                                           " is ", int(uint8_t(text[*at]))));
}

int64_t NumCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (uint8_t(c) & 0xC0) != 0x80; });
}

size_t LastSpaceInWords(std::string_view text, size_t from) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const size_t first = std::max<size_t>(from, 1);
  for (size_t at = text.size() < 2 ? 0 : text.size() - 2; at >= first; --at) {
    if (text[at] == ' ' && is_letter(text[at - 1]) && is_letter(text[at + 1])) return at;
  }
  return text.npos;
}

}  // namespace lssar
