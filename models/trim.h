// ASCII whitespace off the ends of a text, as Jinja's trim and its dashes do.
#ifndef LSSAR_MODELS_TRIM_H_
#define LSSAR_MODELS_TRIM_H_

#include <algorithm>
#include <string_view>

namespace lssar {

inline constexpr std::string_view kWhitespace = " \t\n\r\f\v";

constexpr std::string_view TrimLeft(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kWhitespace), text.size()));
  return text;
}

constexpr std::string_view TrimRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kWhitespace) + 1);
}

}  // namespace lssar

#endif  // LSSAR_MODELS_TRIM_H_
