#include "server/api/parse_parts.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error_details.h"
#include "base/field_error.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "runtime/limits.h"
#include "server/api/fields.h"

namespace lssar {
namespace {

// Messages of a chat. The work of a template grows with them.
constexpr size_t kMaxChatMessages = size_t{1} << 16;
// Bytes of a chat template's own error, which may repeat what a message says.
constexpr size_t kMaxTemplateErrorBytes = 200;

// Requires  the checkpoint has a tokenizer
size_t MaxTextBytes(const ParseContext& context) {
  if (context.max_text_bytes > 0) return context.max_text_bytes;
  return size_t(context.max_model_len) * size_t(context.checkpoint->tokenizer->MaxPieceBytes());
}

absl::StatusOr<Prompt> ReadText(const std::string& text, const ParseContext& context) {
  if (text.empty()) {
    return FieldError("text", "is empty; it must have at least one character");
  }
  ASSIGN_OR_RETURN(auto ids, EncodeField("text", text, context, BosOf(*context.checkpoint)));
  return Prompt{.ids = std::move(ids), .text = text, .stop_strings = {}};
}

absl::StatusOr<Prompt> ReadTokens(const v1::TokenIds& tokens, const Checkpoint& checkpoint) {
  if (tokens.ids().empty()) {
    return FieldError("tokens.ids", "is empty; it must have at least one id");
  }
  ASSIGN_OR_RETURN(auto ids, CheckIds("tokens.ids", tokens.ids(), checkpoint.config.vocab_size));
  return Prompt{.ids = std::move(ids), .text = {}, .stop_strings = {}};
}

// What the template writes: `text` up to the end of the last message's content, which a template
// may trim. `render`: messages -> StatusOr of their text.
template <typename Render>
absl::Status CutBehindLastMessage(std::vector<ChatMessage> messages, const Render& render,
                                  std::string* text) {
  // Stands behind the content in a second text. No template writes it.
  constexpr std::string_view kEndMark = "lssar:end-of-content";
  const std::string content = messages.back().content;
  const size_t first = std::min(content.find_first_not_of(kSpace), content.size());
  const size_t last = content.find_last_not_of(kSpace);  // npos: there is no text
  const std::string_view trimmed = std::string_view(content).substr(first, last + 1 - first);
  if (trimmed.empty()) {
    return FieldError("chat.messages",
                      "ends with a message without text; continue_final_message needs some");
  }
  messages.back().content = StrCat(content.substr(0, last + 1), kEndMark);
  ASSIGN_OR_RETURN(const std::string marked, render(messages));
  size_t end = marked.rfind(kEndMark);
  const std::string_view front = std::string_view(marked).substr(0, end);
  if (end == std::string::npos || !front.ends_with(trimmed) || !text->starts_with(front)) {
    return FieldError("chat.messages",
                      "ends with a message whose content the chat template changes, so that it "
                      "cannot be continued (continue_final_message)");
  }
  // White space at the content's end is kept where the template has kept it.
  const std::string_view tail = std::string_view(content).substr(last + 1);
  if (std::string_view(*text).substr(end).starts_with(tail)) end += tail.size();
  text->resize(end);
  return absl::OkStatus();
}

absl::StatusOr<Prompt> ReadChat(const v1::Chat& chat, const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  if (!checkpoint.chat_template) {
    return UnmetField("chat", StrCat("is set, and checkpoint ", checkpoint.name,
                                     " has no chat template; send text"));
  }
  if (chat.messages().empty()) {
    return FieldError("chat.messages", "is empty; it must have at least one message");
  }
  RETURN_IF_ERROR(CheckCount("chat.messages", size_t(chat.messages_size()), 1, kMaxChatMessages));
  // The template repeats every content, as far as is known.
  size_t num_bytes = 0;
  for (const v1::ChatMessage& message : chat.messages()) num_bytes += message.content().size();
  RETURN_IF_ERROR(CheckTextBytes("chat.messages", num_bytes, context));
  std::vector<ChatMessage> messages;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const auto& [role, content] = std::tie(chat.messages(i).role(), chat.messages(i).content());
    const std::string field = StrCat("chat.messages[", i, "]");
    RETURN_IF_ERROR(CheckText(field + ".role", role));
    if (role != "user" && role != "assistant" && role != "system") {
      return ValueError(field + ".role", Quote(role), "\"user\", \"assistant\" or \"system\"");
    }
    RETURN_IF_ERROR(CheckText(field + ".content", content));
    messages.push_back({.role = role, .content = content});
  }
  if (chat.continue_final_message() && chat.add_generation_prompt()) {
    return FieldError("chat.add_generation_prompt",
                      "is true; it must be false where continue_final_message is true");
  }
  const bool adds_prompt = chat.has_add_generation_prompt() ? chat.add_generation_prompt()
                                                            : !chat.continue_final_message();
  const auto render = [&](const std::vector<ChatMessage>& rendered) -> absl::StatusOr<std::string> {
    auto text = checkpoint.chat_template->Render(rendered, adds_prompt, checkpoint.bos_token,
                                                 checkpoint.eos_token, context.should_stop);
    if (text.ok()) return text;
    if (absl::IsCancelled(text.status())) return WithPrefix("chat: ", text.status());
    const std::string_view reason(text.status().message().data(), text.status().message().size());
    return RefusedField("chat", Shorten(reason, kMaxTemplateErrorBytes));
  };
  ASSIGN_OR_RETURN(std::string text, render(messages));
  if (chat.continue_final_message()) {
    RETURN_IF_ERROR(CutBehindLastMessage(std::move(messages), render, &text));
  }
  ASSIGN_OR_RETURN(auto ids, EncodeField("chat", text, context, {}));
  // A template may write BOS itself, and a role table says all that is written.
  const std::vector<int32_t> bos = context.add_bos ? BosOf(checkpoint) : std::vector<int32_t>();
  const bool needs_bos = !bos.empty() && !checkpoint.chat_template->IsRoleTable() &&
                         (ids.empty() || ids.front() != bos.front());
  if (needs_bos) ids.insert(ids.begin(), bos.begin(), bos.end());
  return Prompt{
      .ids = std::move(ids), .text = std::move(text), .stop_strings = checkpoint.chat_stop_strings};
}

}  // namespace

absl::Status CheckTextBytes(const std::string& field, size_t num_bytes,
                            const ParseContext& context) {
  if (context.checkpoint->tokenizer == nullptr) return absl::OkStatus();
  const size_t most = MaxTextBytes(context);
  if (num_bytes <= most) return absl::OkStatus();
  const std::string reason =
      context.max_text_bytes > 0
          ? std::string()
          : StrCat(": max_model_len ", context.max_model_len, " tokens of at most ",
                   context.checkpoint->tokenizer->MaxPieceBytes(), " bytes");
  const std::string problem =
      StrCat("has ", num_bytes, " bytes; it must have at most ", most, reason);
  if (context.max_text_bytes > 0) return FieldError(field, problem);
  return ContextLengthError(field, problem, context.max_model_len);
}

absl::Status ContextLengthError(std::string_view path, std::string_view problem, int max_model_len,
                                std::string_view subject) {
  absl::Status status = FieldError(
      path, StrCat(problem, " (this model's maximum context length is ", max_model_len, " tokens)"),
      subject);
  SetErrorReason(error_reason::kContextLength, &status);
  return status;
}

std::vector<int32_t> BosOf(const Checkpoint& checkpoint) {
  if (!checkpoint.add_bos || !checkpoint.config.bos_id) return {};
  return {*checkpoint.config.bos_id};
}

template <typename Message>
absl::StatusOr<Prompt> ReadPrompt(const Message& message, const ParseContext& context) {
  if (message.has_text()) return ReadText(message.text(), context);
  if (message.has_tokens()) return ReadTokens(message.tokens(), *context.checkpoint);
  if (message.has_chat()) return ReadChat(message.chat(), context);
  return FieldError("prompt", "is not set; it must be one of text, tokens, chat");
}

template absl::StatusOr<Prompt> ReadPrompt(const v1::GenerateRequest&, const ParseContext&);
template absl::StatusOr<Prompt> ReadPrompt(const v1::CaptureAttentionRequest&, const ParseContext&);

std::vector<int32_t> SortedUnique(std::vector<int32_t> entries) {
  std::ranges::sort(entries);
  const auto repeats = std::ranges::unique(entries);
  entries.erase(repeats.begin(), repeats.end());
  return entries;
}

absl::StatusOr<std::vector<int32_t>> ReadPositions(
    const std::string& field, const google::protobuf::RepeatedField<int32_t>& entries,
    int num_tokens, const std::string& text) {
  std::vector<bool> is_chosen(size_t(num_tokens), false);
  for (int i = 0; i < int(entries.size()); ++i) {
    const int32_t position = entries[i];
    if (position < -num_tokens || position >= num_tokens) {
      return ValueError(StrCat(field, "[", i, "]"), position,
                        StrCat("in [", -num_tokens, ", ", num_tokens, "): ", text, " has ",
                               num_tokens, " tokens"));
    }
    is_chosen[size_t(position < 0 ? position + num_tokens : position)] = true;
  }
  std::vector<int32_t> positions;
  for (int i = 0; i < num_tokens; ++i) {
    if (is_chosen[size_t(i)]) positions.push_back(i);
  }
  return positions;
}

absl::StatusOr<std::vector<int32_t>> EncodeField(const std::string& field, std::string_view text,
                                                 const ParseContext& context,
                                                 std::span<const int32_t> bos) {
  const Tokenizer* const tokenizer = context.checkpoint->tokenizer.get();
  if (tokenizer == nullptr) {
    return UnmetField(field, "is text, and this checkpoint has no tokenizer; send token ids");
  }
  RETURN_IF_ERROR(CheckTextBytes(field, text.size(), context));
  RETURN_IF_ERROR(CheckText(field, text));
  auto ids = tokenizer->Encode(text, context.should_stop);
  if (absl::IsInvalidArgument(ids.status())) {
    return RefusedField(field, StrCat(ids.status().message()));
  }
  if (!ids.ok()) return WithPrefix(StrCat(field, ": "), ids.status());
  ids->insert(ids->begin(), bos.begin(), bos.end());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> ParseTokenize(const v1::TokenizeRequest& message,
                                                   const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  RETURN_IF_ERROR(CheckCheckpoint(message.checkpoint_hash(), checkpoint));
  std::vector<int32_t> bos = BosOf(checkpoint);
  if (message.has_add_bos()) {
    bos.clear();
    if (message.add_bos()) {
      if (!checkpoint.config.bos_id) {
        return UnmetField("add_bos",
                          StrCat("is true; checkpoint ", checkpoint.name, " has no BOS"));
      }
      bos = {*checkpoint.config.bos_id};
    }
  }
  ParseContext tokenize = context;
  tokenize.max_text_bytes = limits::kMaxTokenizeBytes;
  return EncodeField("text", message.text(), tokenize, bos);
}

absl::StatusOr<std::vector<int32_t>> ParseDetokenize(const v1::DetokenizeRequest& message,
                                                     const ParseContext& context) {
  RETURN_IF_ERROR(CheckCheckpoint(message.checkpoint_hash(), *context.checkpoint));
  if (context.checkpoint->tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("checkpoint ", context.checkpoint->name, " has no tokenizer"));
  }
  RETURN_IF_ERROR(CheckCount("ids", size_t(message.ids_size()), 0, limits::kMaxDetokenizeIds));
  return CheckIds("ids", message.ids(), context.checkpoint->config.vocab_size);
}

}  // namespace lssar
