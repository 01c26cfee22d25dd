// StrCat: builds messages. Used in place of absl::StrCat, because Debian's Abseil is built with a
// string_view type of its own and its StrCat does not take std::string_view.
#ifndef LSSAR_BASE_STR_CAT_H_
#define LSSAR_BASE_STR_CAT_H_

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace lssar {

inline void AppendPart(std::string& text, std::string_view part) { text += part; }

// absl::string_view, where it is a type of its own.
template <typename View>
requires(!std::convertible_to<const View&, std::string_view> && requires(const View& view) {
  std::string_view(view.data(), view.size());
}) void AppendPart(std::string& text, const View& part) {
  text.append(part.data(), part.size());
}

// Numbers in the shortest form that reads back as the same number.
template <typename Number>
requires std::integral<Number> || std::floating_point<Number>
void AppendPart(std::string& text, Number part) {
  char digits[64];
  text.append(digits, std::to_chars(digits, digits + sizeof(digits), part).ptr);
}

// Concatenates strings and numbers.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::string text;
  (AppendPart(text, parts), ...);
  return text;
}

// Joins the elements of `range`, each converted by `to_text`, with ", ".
template <typename Range, typename ToText>
std::string StrJoin(const Range& range, ToText to_text) {
  std::string text;
  bool is_first = true;
  for (const auto& element : range) {
    if (!is_first) text += ", ";
    is_first = false;
    AppendPart(text, to_text(element));
  }
  return text;
}

template <typename Range>
std::string StrJoin(const Range& range) {
  return StrJoin(range, [](const auto& element) { return element; });
}

}  // namespace lssar

#endif  // LSSAR_BASE_STR_CAT_H_
