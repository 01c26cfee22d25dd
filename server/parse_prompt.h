// The prompt of Generate and of CaptureAttention: text, token ids or a chat.
#ifndef LSSAR_SERVER_PARSE_PROMPT_H_
#define LSSAR_SERVER_PARSE_PROMPT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "models/checkpoint.h"

namespace lssar {

struct Prompt {
  std::vector<int32_t> ids;               // >= 1
  std::string text;                       // as far as it came as text
  std::vector<std::string> stop_strings;  // the chat template's own
};

// What stands before a text; empty: nothing.
std::vector<int32_t> BosOf(const Checkpoint& checkpoint);

absl::StatusOr<Prompt> ReadText(const std::string& text, const Checkpoint& checkpoint);
absl::StatusOr<Prompt> ReadTokens(const v1::TokenIds& tokens, const Checkpoint& checkpoint);
absl::StatusOr<Prompt> ReadChat(const v1::Chat& chat, const Checkpoint& checkpoint);

// `Message`: v1::GenerateRequest or v1::CaptureAttentionRequest.
template <typename Message>
absl::StatusOr<Prompt> ReadPrompt(const Message& message, const Checkpoint& checkpoint) {
  if (message.has_text()) return ReadText(message.text(), checkpoint);
  if (message.has_tokens()) return ReadTokens(message.tokens(), checkpoint);
  if (message.has_chat()) return ReadChat(message.chat(), checkpoint);
  return absl::InvalidArgumentError("prompt is not set; it must be one of text, tokens, chat");
}

}  // namespace lssar

#endif  // LSSAR_SERVER_PARSE_PROMPT_H_
