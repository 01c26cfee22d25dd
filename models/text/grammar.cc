#include "models/text/grammar.h"

#include <algorithm>

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
