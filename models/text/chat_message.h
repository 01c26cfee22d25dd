// A message of a chat, and the bound of the prompt that a chat becomes.
#ifndef LSSAR_MODELS_TEXT_CHAT_MESSAGE_H_
#define LSSAR_MODELS_TEXT_CHAT_MESSAGE_H_

#include <cstddef>
#include <string>

namespace lssar {

// A request has at most 32 MiB of messages, and a prompt at most 2^20 tokens: what is longer cannot
// be served.
inline constexpr size_t kMaxPromptBytes = size_t{64} << 20;

struct ChatMessage {
  std::string role;  // "user" | "assistant" | "system"
  std::string content;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_CHAT_MESSAGE_H_
