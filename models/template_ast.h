// What a chat template is parsed into. Types are known when it is parsed, so that rendering can
// only fail where the template itself raises an exception.
#ifndef LSSAR_MODELS_TEMPLATE_AST_H_
#define LSSAR_MODELS_TEMPLATE_AST_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lssar {

enum class TemplateOp : uint8_t {
  kLiteral,    // text
  kBool,       // flag
  kRole,       // of the loop's message
  kContent,    // of the loop's message
  kLoopFirst,  // bool
  kLoopLast,   // bool
  kBosToken,
  kEosToken,
  kAddGenerationPrompt,  // bool
  kTrim,                 // args[0] without whitespace at its ends
  kConcat,               // args[0] + args[1]
  kEqual,                // bool: args[0] == args[1]
  kNot,                  // bool
  kAnd,                  // args[0] if it is false or empty, else args[1]
  kOr,
  kChoose,  // args[1] if args[0] else args[2]
  kRaise,   // ends the rendering with args[0] as message
};

enum class TemplateType : uint8_t { kText, kBool };

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
  std::vector<TemplateNode> body = {};
};

struct TemplateNode {
  enum class Kind : uint8_t { kPrint, kIf, kForMessages } kind = Kind::kPrint;
  TemplateExpr printed = {};                  // kPrint
  std::vector<TemplateBranch> branches = {};  // kIf: the first that holds; kForMessages: one body
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEMPLATE_AST_H_
