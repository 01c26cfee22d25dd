#include "models/text/white_space.h"

#include <array>

namespace lssar {
namespace {

// Every character for which str.isspace() of Python 3.11 is true.
constexpr std::array<std::string_view, 29> kWhiteSpace{
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

}  // namespace

std::string_view TrimLeft(std::string_view text) {
  for (bool is_trimmed = false; !is_trimmed;) {
    is_trimmed = true;
    for (const std::string_view space : kWhiteSpace) {
      if (!text.starts_with(space)) continue;
      text.remove_prefix(space.size());
      is_trimmed = false;
    }
  }
  return text;
}

std::string_view TrimRight(std::string_view text) {
  for (bool is_trimmed = false; !is_trimmed;) {
    is_trimmed = true;
    for (const std::string_view space : kWhiteSpace) {
      if (!text.ends_with(space)) continue;
      text.remove_suffix(space.size());
      is_trimmed = false;
    }
  }
  return text;
}

}  // namespace lssar
