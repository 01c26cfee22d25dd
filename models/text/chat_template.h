// Renders chat messages to one prompt text with the checkpoint's template.
#ifndef LSSAR_MODELS_TEXT_CHAT_TEMPLATE_H_
#define LSSAR_MODELS_TEXT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "models/text/chat_message.h"
#include "models/text/chat_roles.h"

namespace lssar {

// The bound of one rendering. Unit: about a nanosecond. A byte that is copied, compared or trimmed
// costs 1, an expression or a statement kWorkOfExpression.
inline constexpr int64_t kMaxRenderWork = int64_t{1} << 30;
inline constexpr int64_t kWorkOfExpression = 32;
inline constexpr int64_t kRenderWorkPerPoll = 1 << 18;  // and what one text costs

// A role table, or a subset of Jinja (README.md lists it). Parse refuses anything outside it, with
// line, column and what was found there.
class ChatTemplate {
 public:
  // Cost    linear in the text
  // Errors  INVALID_ARGUMENT: outside the subset, too long or nested too deep
  static absl::StatusOr<ChatTemplate> Parse(std::string_view text);

  static ChatTemplate FromRoles(ChatRoles roles);
  // A table has the template's BOS in its texts.
  bool IsRoleTable() const;

  // bos_token and eos_token are unused by a role table.
  // Cost    each expression is evaluated at most once where it stands, and without recursion beyond
  //         kMaxTemplateDepth
  // Errors  INVALID_ARGUMENT: no message, ChatRoles::Render's; raise_exception() was called, the
  //         prompt would be longer than kMaxPromptBytes, or rendering would take more than
  //         kMaxRenderWork
  //         CANCELLED: should_stop returned true, which is asked at least once in
  //         kRenderWorkPerPoll; by a role table as ChatRoles::Render does
  absl::StatusOr<std::string> Render(
      std::span<const ChatMessage> messages, bool add_generation_prompt, std::string_view bos_token,
      std::string_view eos_token,
      absl::FunctionRef<bool()> should_stop = [] { return false; }) const;

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_CHAT_TEMPLATE_H_
