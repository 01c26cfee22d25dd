#include "server/parse_prompt.h"

#include <tuple>
#include <utility>

#include "server/fields.h"

namespace lssar {

std::vector<int32_t> BosOf(const Checkpoint& checkpoint) {
  if (!checkpoint.add_bos || !checkpoint.config.bos_id) return {};
  return {*checkpoint.config.bos_id};
}

absl::StatusOr<Prompt> ReadText(const std::string& text, const Checkpoint& checkpoint) {
  if (text.empty()) {
    return absl::InvalidArgumentError("text is empty; it must have at least one character");
  }
  auto ids = EncodeField("text", text, checkpoint.tokenizer.get(), BosOf(checkpoint));
  if (!ids.ok()) return ids.status();
  return Prompt{.ids = *std::move(ids), .text = text, .stop_strings = {}};
}

absl::StatusOr<Prompt> ReadTokens(const v1::TokenIds& tokens, const Checkpoint& checkpoint) {
  if (tokens.ids().empty()) {
    return absl::InvalidArgumentError("tokens.ids is empty; it must have at least one id");
  }
  auto ids = CheckIds("tokens.ids", tokens.ids(), checkpoint.config.vocab_size);
  if (!ids.ok()) return ids.status();
  return Prompt{.ids = *std::move(ids), .text = {}, .stop_strings = {}};
}

absl::StatusOr<Prompt> ReadChat(const v1::Chat& chat, const Checkpoint& checkpoint) {
  if (!checkpoint.chat_template) {
    return absl::FailedPreconditionError(
        StrCat("chat: checkpoint ", checkpoint.name, " has no chat template; send text"));
  }
  if (chat.messages().empty()) {
    return absl::InvalidArgumentError("chat.messages is empty; it must have at least one message");
  }
  std::vector<ChatMessage> messages;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const auto& [role, content] = std::tie(chat.messages(i).role(), chat.messages(i).content());
    const std::string field = StrCat("chat.messages[", i, "]");
    RETURN_IF_ERROR(CheckText(field + ".role", role));
    if (role != "user" && role != "assistant" && role != "system") {
      return Refuse(field + ".role", StrCat("\"", role, "\""),
                    "\"user\", \"assistant\" or \"system\"");
    }
    RETURN_IF_ERROR(CheckText(field + ".content", content));
    messages.push_back({.role = role, .content = content});
  }
  auto text = checkpoint.chat_template->Render(messages, /*add_generation_prompt=*/true,
                                               checkpoint.bos_token, checkpoint.eos_token);
  if (!text.ok()) {
    return absl::InvalidArgumentError(StrCat("chat: ", text.status().message()));
  }
  auto ids = EncodeField("chat", *text, checkpoint.tokenizer.get(), BosOf(checkpoint));
  if (!ids.ok()) return ids.status();
  return Prompt{.ids = *std::move(ids),
                .text = *std::move(text),
                .stop_strings = checkpoint.chat_stop_strings};
}

}  // namespace lssar
