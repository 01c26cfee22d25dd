#include "models/chat_template.h"

#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "models/template_parser.h"

namespace lssar {
namespace {

struct Value {
  std::string text = {};
  bool flag = false;

  bool IsTrue(TemplateType type) const {
    return type == TemplateType::kBool ? flag : !text.empty();
  }
};

std::string Trimmed(const std::string& text) { return std::string(TrimLeft(TrimRight(text))); }

class Renderer {
 public:
  Renderer(std::span<const ChatMessage> messages, bool add_generation_prompt,
           std::string_view bos_token, std::string_view eos_token)
      : messages_(messages),
        add_generation_prompt_(add_generation_prompt),
        bos_token_(bos_token),
        eos_token_(eos_token) {}

  void Run(const std::vector<TemplateNode>& nodes) {
    for (const TemplateNode& node : nodes) {
      if (!status_.ok()) return;
      switch (node.kind) {
        case TemplateNode::Kind::kPrint: text_ += Evaluate(node.printed).text; break;
        case TemplateNode::Kind::kIf:
          for (const TemplateBranch& branch : node.branches) {
            if (!Evaluate(branch.condition).IsTrue(branch.condition.type)) continue;
            Run(branch.body);
            break;
          }
          break;
        case TemplateNode::Kind::kForMessages:
          for (message_idx_ = 0; message_idx_ < messages_.size(); ++message_idx_) {
            Run(node.branches.front().body);
          }
          break;
      }
    }
  }

  absl::StatusOr<std::string> Result() && {
    RETURN_IF_ERROR(status_);
    return std::move(text_);
  }

 private:
  Value Evaluate(const TemplateExpr& e) {
    const auto arg = [&](size_t i) { return Evaluate(e.args[i]); };
    const auto is_true = [&](size_t i) { return arg(i).IsTrue(e.args[i].type); };
    switch (e.op) {
      case TemplateOp::kLiteral: return {.text = e.text};
      case TemplateOp::kBool: return {.flag = e.flag};
      case TemplateOp::kRole: return {.text = messages_[message_idx_].role};
      case TemplateOp::kContent: return {.text = messages_[message_idx_].content};
      case TemplateOp::kLoopFirst: return {.flag = message_idx_ == 0};
      case TemplateOp::kLoopLast: return {.flag = message_idx_ + 1 == messages_.size()};
      case TemplateOp::kBosToken: return {.text = std::string(bos_token_)};
      case TemplateOp::kEosToken: return {.text = std::string(eos_token_)};
      case TemplateOp::kAddGenerationPrompt: return {.flag = add_generation_prompt_};
      case TemplateOp::kTrim: return {.text = Trimmed(arg(0).text)};
      case TemplateOp::kConcat: return {.text = arg(0).text + arg(1).text};
      case TemplateOp::kEqual: {
        const Value a = arg(0), b = arg(1);
        return {.flag = a.text == b.text && a.flag == b.flag};
      }
      case TemplateOp::kNot: return {.flag = !is_true(0)};
      case TemplateOp::kAnd: return is_true(0) ? arg(1) : arg(0);
      case TemplateOp::kOr: return is_true(0) ? arg(0) : arg(1);
      case TemplateOp::kChoose: return is_true(0) ? arg(1) : arg(2);
      case TemplateOp::kRaise:
        if (status_.ok()) {
          status_ = absl::InvalidArgumentError(StrCat("chat template: ", arg(0).text));
        }
        return {};
    }
    LSSAR_CHECK(false);  // unknown template op
    return {};
  }

  std::span<const ChatMessage> messages_;
  bool add_generation_prompt_;
  std::string_view bos_token_, eos_token_;
  size_t message_idx_ = 0;  // in the loop
  std::string text_;
  absl::Status status_;
};

}  // namespace

struct ChatTemplate::Program {
  std::vector<TemplateNode> nodes;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view text) {
  ASSIGN_OR_RETURN(std::vector<TemplateNode> nodes, ParseTemplate(text));
  return ChatTemplate(std::make_unique<Program>(Program{std::move(nodes)}));
}

absl::StatusOr<std::string> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                 bool add_generation_prompt,
                                                 std::string_view bos_token,
                                                 std::string_view eos_token) const {
  Renderer renderer(messages, add_generation_prompt, bos_token, eos_token);
  renderer.Run(program_->nodes);
  return std::move(renderer).Result();
}

}  // namespace lssar
