// A chat template, parsed: the subset of Jinja that README.md lists. Types are checked by the
// parser, so rendering fails only where the template calls raise_exception or does too much.
#ifndef LSSAR_MODELS_TEXT_TEMPLATE_PARSER_H_
#define LSSAR_MODELS_TEXT_TEMPLATE_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar {

enum class TemplateOp : uint8_t {
  kLiteral,    // text
  kBool,       // flag
  kRole,       // of the loop's message, or of the first one if `flag`
  kContent,    // the same
  kLoopFirst,  // bool
  kLoopLast,   // bool
  kBosToken,
  kEosToken,
  kAddGenerationPrompt,  // bool
  kTrim,                 // args[0] without whitespace at its ends
  kConcat,               // all args, one behind the other
  kEqual,                // bool: args[0] == args[1]
  kNot,                  // bool
  kAnd,                  // the first of args that is false or empty, else the last one
  kOr,                   // the first of args that is neither, else the last one
  kChoose,               // args[1] if args[0] else args[2]
  kRaise,                // fails the rendering with args[0] as the message
};

enum class TemplateType : uint8_t { kText, kBool };

// A chain (a + b + c, a or b or c) is one expression with many args, so that the tree is as deep as
// the source is nested: at most a few levels for each of kMaxTemplateDepth.
struct TemplateExpr {
  TemplateOp op = TemplateOp::kLiteral;
  TemplateType type = TemplateType::kText;
  std::string text = {};
  bool flag = false;
  std::vector<TemplateExpr> args = {};
};

struct TemplateNode;

struct TemplateBranch {
  TemplateExpr condition = {};
  std::vector<TemplateNode> body;  // no initializer: the type is not complete yet
};

struct TemplateNode {
  enum class Kind : uint8_t { kPrint, kIf, kForMessages } kind = Kind::kPrint;
  TemplateExpr printed = {};  // kPrint
  std::vector<TemplateBranch> branches =
      {};  // kIf: the first true one runs; kForMessages: one body
};

inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
inline constexpr int kMaxTemplateDepth = 64;  // of blocks and parentheses

// Cost    linear in the source; the recursion is bounded by kMaxTemplateDepth
// Errors  INVALID_ARGUMENT: outside the subset, "line:column: what was found"; longer than
//         kMaxTemplateBytes, deeper than kMaxTemplateDepth
absl::StatusOr<std::vector<TemplateNode>> ParseTemplate(std::string_view source);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_TEMPLATE_PARSER_H_
