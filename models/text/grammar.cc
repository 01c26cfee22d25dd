#include "models/text/grammar.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/str_cat.h"

namespace lssar {

GrammarSource JsonObjectSource() {
  return {.kind = GrammarSource::Kind::kJsonSchema, .text = R"({"type": "object"})"};
}

GrammarSource ChoiceSource(std::span<const std::string> choices) {
  static constexpr char kHex[] = "0123456789abcdef";
  GrammarSource source{.kind = GrammarSource::Kind::kEbnf, .text = "root ::= "};
  for (size_t i = 0; i < choices.size(); ++i) {
    source.text += i == 0 ? "\"" : " | \"";
    for (const char c : choices[i]) {
      if (c == '"' || c == '\\') {
        source.text += {'\\', c};
      } else if (uint8_t(c) < 0x20 || c == 0x7f) {
        source.text += {'\\', 'x', kHex[uint8_t(c) >> 4], kHex[uint8_t(c) & 15]};
      } else {
        source.text += c;
      }
    }
    source.text += '"';
  }
  source.text += '\n';
  return source;
}

std::string WithoutHexEscapes(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '\\' || at + 1 == text.size()) {
      result += text[at++];
      continue;
    }
    const std::string_view digits = text.substr(std::min(at + 2, text.size()), 2);
    const bool is_hex =
        text[at + 1] == 'x' && digits.size() == 2 &&
        std::ranges::all_of(digits, [](char c) { return absl::ascii_isxdigit(uint8_t(c)); });
    if (is_hex) {
      result += StrCat("\\u00", digits);
    } else {
      result += text.substr(at, 2);
    }
    at += is_hex ? 4 : 2;
  }
  return result;
}

namespace {

// Bytes of the escape of ^ that `text` begins with; 0: there is none.
size_t EscapedCaretBytes(std::string_view text) {
  if (text.starts_with("\\^")) return 2;
  if (!text.starts_with("\\u")) return 0;
  const bool has_braces = text.substr(2).starts_with('{');
  const size_t end = has_braces ? text.find('}') : 6;
  if (end == text.npos || end > text.size()) return 0;
  const size_t begin = has_braces ? 3 : 2;
  const std::string digits(text.substr(begin, end - begin));
  if (digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) return 0;
  const size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  return absl::AsciiStrToLower(digits.substr(first)) == "5e" ? end + has_braces : 0;
}

}  // namespace

std::string PrepareRegex(std::string_view original) {
  const std::string regex = WithoutHexEscapes(original);
  std::string text;
  bool is_in_class = false, ends_group = false;
  for (size_t at = 0; at < regex.size();) {
    const std::string_view rest = std::string_view(regex).substr(at);
    if (rest[0] == '\\') {
      text += rest.substr(0, 2);
      at += std::min<size_t>(2, rest.size());
      continue;
    }
    ++at;
    if (is_in_class || rest[0] != '[') {
      text += rest[0];
      if (is_in_class && rest[0] == ']') {
        if (ends_group) text += ')';
        is_in_class = ends_group = false;
      }
      continue;
    }
    // Elements at the beginning of the class that are ^.
    bool has_caret = false, begins_range = false;
    while (!begins_range) {
      const std::string_view element = std::string_view(regex).substr(at);
      const size_t num_bytes =
          has_caret && element.starts_with('^') ? 1 : EscapedCaretBytes(element);
      if (num_bytes == 0) break;
      has_caret = true;
      at += num_bytes;
      const std::string_view behind = std::string_view(regex).substr(at);
      begins_range = behind.size() > 1 && behind[0] == '-' && behind[1] != ']';
    }
    if (has_caret && at < regex.size() && regex[at] == ']') {
      text += "\\^";
      ++at;
      continue;
    }
    text += !has_caret ? "[" : begins_range ? "(?:\\^|[_" : "(?:\\^|[";  // _ is the next of ^
    is_in_class = true;
    ends_group = has_caret;
  }
  return text;
}

absl::Status CheckGrammarSource(const GrammarSource& source) {
  if (source.text.size() > kMaxGrammarBytes) {
    return absl::InvalidArgumentError(
        StrCat("has ", source.text.size(), " bytes; it must have at most ", kMaxGrammarBytes));
  }
  if (source.IsJsonSchema()) return absl::OkStatus();
  int depth = 0, deepest = 0;
  for (const char c : source.text) {
    if (c == '(' || c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ')' || c == ']' || c == '}') depth = std::max(0, depth - 1);
  }
  if (deepest <= kMaxGrammarDepth) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("has brackets ", deepest,
                                           " deep within each other; they may be ",
                                           kMaxGrammarDepth, " deep"));
}

}  // namespace lssar
