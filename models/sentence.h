// Error sentences out of parts. (Debian's absl keeps a string_view type of its own, so StrCat does
// not take std::string_view.)
#ifndef LSSAR_MODELS_SENTENCE_H_
#define LSSAR_MODELS_SENTENCE_H_

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace lssar {

inline void AppendPart(std::string& text, std::string_view part) { text += part; }

// Numbers in their shortest form that reads back as the same number.
template <typename Number>
requires std::integral<Number> || std::floating_point<Number>
void AppendPart(std::string& text, Number part) {
  char digits[64];
  text.append(digits, std::to_chars(digits, digits + sizeof(digits), part).ptr);
}

// Parts are strings and numbers.
template <typename... Parts>
std::string Sentence(const Parts&... parts) {
  std::string text;
  (AppendPart(text, parts), ...);
  return text;
}

// Elements of `range`, each through `name`, with ", " between.
template <typename Range, typename Name>
std::string Listed(const Range& range, Name name) {
  std::string text;
  for (const auto& element : range) {
    if (!text.empty()) text += ", ";
    AppendPart(text, name(element));
  }
  return text;
}

template <typename Range>
std::string Listed(const Range& range) {
  return Listed(range, [](const auto& element) { return element; });
}

}  // namespace lssar

#endif  // LSSAR_MODELS_SENTENCE_H_
