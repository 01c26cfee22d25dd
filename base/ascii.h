// Abseil's functions of ASCII texts for std::string_view: str_cat.h says why they do not take it.
#ifndef LSSAR_BASE_ASCII_H_
#define LSSAR_BASE_ASCII_H_

#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace lssar {

// Without white space at both ends.
inline std::string_view Trim(std::string_view text) {
  const absl::string_view trimmed =
      absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  return {trimmed.data(), trimmed.size()};
}

inline bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase({a.data(), a.size()}, {b.data(), b.size()});
}

}  // namespace lssar

#endif  // LSSAR_BASE_ASCII_H_
