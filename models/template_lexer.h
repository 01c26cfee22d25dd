// A chat template cut into text and the tokens of its tags, with Jinja's rules for whitespace.
#ifndef LSSAR_MODELS_TEMPLATE_LEXER_H_
#define LSSAR_MODELS_TEMPLATE_LEXER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar {

enum class TokenKind : uint8_t {
  kText,        // outside of tags; `text` is what is printed
  kOpenPrint,   // {{
  kClosePrint,  // }}
  kOpenBlock,   // {%
  kCloseBlock,  // %}
  kName,        // also keywords
  kString,      // `text` is its value
  kSign,        // ( ) [ ] . | + == != =, and whatever else stands there
  kEnd,
};

struct TemplateToken {
  TokenKind kind = TokenKind::kEnd;
  std::string text = {};
  size_t at = 0;  // byte in the template
};

// As transformers sets Jinja up: the newline after a block tag and the blanks before one that
// stands first on its line are dropped (trim_blocks, lstrip_blocks), as is the template's last
// newline. Errors  INVALID_ARGUMENT: a tag or a string that does not end
absl::StatusOr<std::vector<TemplateToken>> LexTemplate(std::string_view source);

// "3:14: SENTENCE", line and column of byte `at`, both from 1.
absl::Status TemplateError(std::string_view source, size_t at, std::string_view sentence);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEMPLATE_LEXER_H_
