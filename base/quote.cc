#include "base/quote.h"

#include "base/str_cat.h"
#include "base/utf8.h"

namespace lssar {
namespace {

// The front of `text`, at most `max_bytes`, as well-formed UTF-8.
std::string Front(std::string_view text, size_t max_bytes) {
  std::string front;
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8(text);
    const std::string_view shown =
        unit.kind == Utf8Kind::kCharacter ? text.substr(0, unit.num_bytes) : kReplacementCharacter;
    if (front.size() + shown.size() > max_bytes) break;
    const auto byte = [&shown](size_t i) { return uint8_t(shown[i]); };
    const bool is_c0 = shown.size() == 1 && (byte(0) < 0x20 || byte(0) == 0x7f);
    const bool is_c1 = shown.size() == 2 && byte(0) == 0xc2 && byte(1) < 0xa0;
    front += is_c0 || is_c1 ? std::string_view(" ") : shown;
    text.remove_prefix(unit.num_bytes);
  }
  return front;
}

}  // namespace

std::string Quote(std::string_view value) {
  if (value.size() <= kMaxQuotedBytes) return StrCat("\"", Printable(value), "\"");
  return StrCat("\"", Front(value, kMaxQuotedBytes), "...\" (", value.size(), " bytes)");
}

// A byte that is not UTF-8 becomes three.
std::string Printable(std::string_view message) { return Front(message, 3 * message.size()); }

std::string Shorten(std::string_view message, size_t max_bytes) {
  if (message.size() <= max_bytes) return std::string(message);
  return Front(message, max_bytes) + "...";
}

}  // namespace lssar
