#include "models/text/chat_template.h"

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/template_parser.h"
#include "models/text/white_space.h"

namespace lssar {
namespace {

constexpr size_t kMaxErrorBytes = 500;  // of the template's own message, which may quote a request

// The length of the whole characters at the start of `text`, at most `max_bytes`.
size_t BytesOfCharacters(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text.size();
  size_t num_bytes = max_bytes;
  while (num_bytes > 0 && (static_cast<unsigned char>(text[num_bytes]) & 0xC0) == 0x80) --num_bytes;
  return num_bytes;
}

struct Value {
  std::string_view text = {};  // lives as long as the renderer's statement
  bool flag = false;

  bool IsTrue(TemplateType type) const {
    return type == TemplateType::kBool ? flag : !text.empty();
  }
};

class Renderer {
 public:
  Renderer(std::span<const ChatMessage> messages, bool add_generation_prompt,
           std::string_view bos_token, std::string_view eos_token,
           absl::FunctionRef<bool()> should_stop)
      : messages_(messages),
        add_generation_prompt_(add_generation_prompt),
        bos_token_(bos_token),
        eos_token_(eos_token),
        should_stop_(should_stop) {}

  void Run(const std::vector<TemplateNode>& nodes) {
    for (const TemplateNode& node : nodes) {
      if (!Spend(kWorkOfExpression)) return;
      switch (node.kind) {
        case TemplateNode::Kind::kPrint: Print(Evaluate(node.printed).text); break;
        case TemplateNode::Kind::kIf: RunIf(node); break;
        case TemplateNode::Kind::kForMessages:
          for (message_idx_ = 0; message_idx_ < messages_.size() && status_.ok(); ++message_idx_) {
            Run(node.branches.front().body);
          }
          break;
      }
      joined_.clear();
      joined_bytes_ = 0;
    }
  }

  absl::StatusOr<std::string> Result() && {
    RETURN_IF_ERROR(status_);
    return std::move(text_);
  }

 private:
  void RunIf(const TemplateNode& node) {
    for (const TemplateBranch& branch : node.branches) {
      const bool is_true = Evaluate(branch.condition).IsTrue(branch.condition.type);
      if (!status_.ok()) return;
      if (is_true) return Run(branch.body);
    }
  }

  void Print(std::string_view text) {
    if (!Spend(int64_t(text.size()))) return;
    if (text.size() > kMaxPromptBytes - text_.size()) {
      return Fail(StrCat("the prompt is longer than ", kMaxPromptBytes, " bytes"));
    }
    text_ += text;
  }

  // False after an error, too: nothing more is evaluated then.
  bool Spend(int64_t work) {
    work_ += work;
    if (work_ > kMaxRenderWork) {
      Fail(StrCat("it takes more than ", kMaxRenderWork, " steps to render ", messages_.size(),
                  " messages"));
    }
    if (status_.ok() && work_ >= polled_at_) {
      polled_at_ = work_ + kRenderWorkPerPoll;
      if (should_stop_()) status_ = RenderingStopped();
    }
    return status_.ok();
  }

  void Fail(std::string_view problem) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(StrCat("chat template: ", problem));
  }

  Value Evaluate(const TemplateExpr& e) {
    if (!Spend(kWorkOfExpression)) return {};
    const auto arg = [&](size_t i) { return Evaluate(e.args[i]); };
    const auto is_true = [&](size_t i) { return arg(i).IsTrue(e.args[i].type); };
    switch (e.op) {
      case TemplateOp::kLiteral: return {.text = e.text};
      case TemplateOp::kBool: return {.flag = e.flag};
      case TemplateOp::kRole: return {.text = MessageOf(e).role};
      case TemplateOp::kContent: return {.text = MessageOf(e).content};
      case TemplateOp::kLoopFirst: return {.flag = message_idx_ == 0};
      case TemplateOp::kLoopLast: return {.flag = message_idx_ + 1 == messages_.size()};
      case TemplateOp::kBosToken: return {.text = bos_token_};
      case TemplateOp::kEosToken: return {.text = eos_token_};
      case TemplateOp::kAddGenerationPrompt: return {.flag = add_generation_prompt_};
      case TemplateOp::kTrim: return Trim(arg(0));
      case TemplateOp::kConcat: return Concat(e);
      case TemplateOp::kEqual: {
        const Value a = arg(0), b = arg(1);
        const bool has_same_size = a.text.size() == b.text.size();
        if (has_same_size && !Spend(int64_t(a.text.size()))) return {};
        return {.flag = has_same_size && a.text == b.text && a.flag == b.flag};
      }
      case TemplateOp::kNot: return {.flag = !is_true(0)};
      case TemplateOp::kAnd: return FirstThatIs(false, e);
      case TemplateOp::kOr: return FirstThatIs(true, e);
      case TemplateOp::kChoose: return is_true(0) ? arg(1) : arg(2);
      case TemplateOp::kRaise: {
        const std::string_view message = arg(0).text;
        Fail(message.substr(0, BytesOfCharacters(message, kMaxErrorBytes)));
        return {};
      }
    }
    LSSAR_CHECK(false);  // unknown template op
    return {};
  }

  const ChatMessage& MessageOf(const TemplateExpr& e) const {
    return messages_[e.flag ? 0 : message_idx_];
  }

  Value FirstThatIs(bool wanted, const TemplateExpr& e) {
    Value value;
    for (const TemplateExpr& arg : e.args) {
      value = Evaluate(arg);
      if (value.IsTrue(arg.type) == wanted) break;
    }
    return value;
  }

  Value Trim(Value value) {
    const std::string_view trimmed = TrimLeft(TrimRight(value.text));
    Spend(int64_t(value.text.size() - trimmed.size()));
    return {.text = trimmed};
  }

  Value Concat(const TemplateExpr& e) {
    std::string joined;
    for (const TemplateExpr& arg : e.args) {
      const std::string_view part = Evaluate(arg).text;
      if (!Spend(int64_t(part.size()))) return {};
      joined_bytes_ += part.size();
      if (joined_bytes_ > kMaxPromptBytes) {
        Fail(StrCat("the texts of one statement are longer than ", kMaxPromptBytes, " bytes"));
        return {};
      }
      joined += part;
    }
    return {.text = joined_.emplace_back(std::move(joined))};
  }

  std::span<const ChatMessage> messages_;
  bool add_generation_prompt_;
  std::string_view bos_token_, eos_token_;
  size_t message_idx_ = 0;  // in the loop
  absl::FunctionRef<bool()> should_stop_;
  int64_t work_ = 0;
  int64_t polled_at_ = 0;
  std::deque<std::string> joined_;  // texts of the statement that runs
  size_t joined_bytes_ = 0;
  std::string text_;
  absl::Status status_;
};

}  // namespace

struct ChatTemplate::Program {
  std::vector<TemplateNode> nodes;
  std::optional<ChatRoles> roles;  // instead of nodes
};

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view text) {
  ASSIGN_OR_RETURN(std::vector<TemplateNode> nodes, ParseTemplate(text));
  return ChatTemplate(std::make_unique<Program>(Program{.nodes = std::move(nodes), .roles = {}}));
}

ChatTemplate ChatTemplate::FromRoles(ChatRoles roles) {
  return ChatTemplate(std::make_unique<Program>(Program{.nodes = {}, .roles = std::move(roles)}));
}

bool ChatTemplate::IsRoleTable() const { return program_->roles.has_value(); }

absl::StatusOr<std::string> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                 bool add_generation_prompt,
                                                 std::string_view bos_token,
                                                 std::string_view eos_token,
                                                 absl::FunctionRef<bool()> should_stop) const {
  if (messages.empty()) return absl::InvalidArgumentError("chat template: there is no message");
  if (program_->roles) return program_->roles->Render(messages, add_generation_prompt, should_stop);
  Renderer renderer(messages, add_generation_prompt, bos_token, eos_token, should_stop);
  renderer.Run(program_->nodes);
  return std::move(renderer).Result();
}

}  // namespace lssar
