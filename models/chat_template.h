// Renders chat messages to one prompt text with the checkpoint's template.
#ifndef LSSAR_MODELS_CHAT_TEMPLATE_H_
#define LSSAR_MODELS_CHAT_TEMPLATE_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lssar {

struct ChatMessage {
  std::string role;  // "user" | "assistant" | "system"
  std::string content;
};

// A subset of Jinja (README.md lists it). Parse refuses anything outside it, with line, column and
// what was found there.
class ChatTemplate {
 public:
  // Errors  INVALID_ARGUMENT: outside the subset
  static absl::StatusOr<ChatTemplate> Parse(std::string_view text);

  // Errors  INVALID_ARGUMENT: the template called raise_exception()
  absl::StatusOr<std::string> Render(std::span<const ChatMessage> messages,
                                     bool add_generation_prompt, std::string_view bos_token,
                                     std::string_view eos_token) const;

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_CHAT_TEMPLATE_H_
