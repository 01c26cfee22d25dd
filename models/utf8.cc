#include "models/utf8.h"

#include "kernels/check.h"

namespace lssar {
namespace {

// What the first byte of a character says: how long it is, and which second bytes may follow (the
// only place where overlong forms, surrogates and values past U+10FFFF show).
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

}  // namespace lssar
