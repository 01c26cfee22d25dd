#include "server/http/answer_request.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/http/body_fields.h"
#include "server/http/json_text.h"
#include "server/http/request_fields.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 3> kResponseParts = {"input_text", "output_text", "text"};
constexpr std::string_view kLogprobsOfText = "message.output_text.logprobs";
// Parts of items that no answer of this server has.
constexpr std::array<std::string_view, 7> kAbsentParts = {
    "reasoning.encrypted_content",   "file_search_call.results",
    "web_search_call.results",       "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs"};

void AddMessage(std::string role, std::string content, v1::Chat* chat) {
  v1::ChatMessage& message = *chat->add_messages();
  message.set_role(std::move(role));
  message.set_content(std::move(content));
}

// An element of `input`: a message, also one of an earlier answer.
absl::Status ReadInputItem(const std::string& field, const Json& item, v1::Chat* chat) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(item, field));
  ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("type"));
  if (type.value_or("message") != "message") {
    return FieldError(field + ".type", StrCat("is ", Quote(*type),
                                              "; this server reads messages alone: it calls no "
                                              "tools and keeps no items"));
  }
  RETURN_IF_ERROR(CheckFields(kInputItem, fields));
  ASSIGN_OR_RETURN(std::optional<std::string> role, fields.String("role"));
  if (!role) return FieldError(field + ".role", "is missing");
  if (*role == "developer") role = "system";
  if (*role != "user" && *role != "assistant" && *role != "system") {
    return FieldError(field + ".role",
                      StrCat("is ", Quote(*role),
                             "; it must be \"user\", \"assistant\", \"system\" or \"developer\""));
  }
  const Json* content = fields.Find("content");
  if (content == nullptr) return FieldError(field + ".content", "is missing");
  ASSIGN_OR_RETURN(std::string text, ReadContent(field + ".content", *content, kResponseParts));
  AddMessage(*std::move(role), std::move(text), chat);
  return absl::OkStatus();
}

absl::Status ReadInput(const Json* input, v1::Chat* chat) {
  if (input == nullptr) return FieldError("input", "is missing");
  if (input->is_string()) {
    AddMessage("user", input->get<std::string>(), chat);
    return absl::OkStatus();
  }
  if (!input->is_array() || input->empty()) {
    return FieldError("input", StrCat("is ", TypeName(*input),
                                      "; it must be a string or a list of messages, at least one"));
  }
  for (size_t i = 0; i < input->size(); ++i) {
    RETURN_IF_ERROR(ReadInputItem(StrCat("input[", i, "]"), (*input)[i], chat));
  }
  return absl::OkStatus();
}

// Whether the log-probabilities of the text are asked for.
absl::StatusOr<bool> ReadInclude(const Json* include) {
  if (include == nullptr) return false;
  if (!include->is_array()) {
    return FieldError("include", StrCat("is ", TypeName(*include), "; it must be a list"));
  }
  bool has_logprobs = false;
  for (size_t i = 0; i < include->size(); ++i) {
    const std::string field = StrCat("include[", i, "]");
    ASSIGN_OR_RETURN(const std::string part, ReadString(field, (*include)[i]));
    if (part == kLogprobsOfText) {
      has_logprobs = true;
    } else if (std::ranges::count(kAbsentParts, part) == 0) {
      return FieldError(field, StrCat("is ", Quote(part), "; it must be \"", kLogprobsOfText,
                                      "\" or another part of OpenAI's list"));
    }
  }
  return has_logprobs;
}

// `text`: {"format": {"type": "json_schema", "name": "...", "schema": {...}}}
absl::Status ReadTextConfig(const Json* text, AnswerRequest* request, v1::GenerateRequest* shared) {
  if (text == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(*text, "text"));
  RETURN_IF_ERROR(CheckFields(kTextConfig, fields));
  ASSIGN_OR_RETURN(request->completion.constraint, ReadTextFormat(fields, shared));
  if (const Json* format = fields.Find("format")) request->text_format = format->dump();
  return CheckConstraintBytes(request->completion.constraint, *shared, /*num_prompts=*/1);
}

}  // namespace

absl::StatusOr<AnswerRequest> ReadResponse(const Json& body) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kResponsesBody, fields));
  AnswerRequest request;
  CompletionRequest& completion = request.completion;
  v1::GenerateRequest shared;
  RETURN_IF_ERROR(ReadGenerateFields(fields, &completion, &shared));
  ASSIGN_OR_RETURN(const std::optional<int32_t> max_tokens, fields.Int32("max_output_tokens"));
  RETURN_IF_ERROR(SetChatTokens("max_output_tokens", max_tokens, &completion, &shared));
  if (max_tokens) request.max_output_tokens = StrCat(*max_tokens);

  ASSIGN_OR_RETURN(const bool has_logprobs, ReadInclude(fields.Find("include")));
  ASSIGN_OR_RETURN(const std::optional<int32_t> top, fields.Int32("top_logprobs"));
  if (top.value_or(0) != 0 && !has_logprobs) {
    return FieldError("top_logprobs",
                      StrCat("is ", *top, "; it needs \"", kLogprobsOfText, "\" in include"));
  }
  if (has_logprobs) {
    completion.num_logprobs = top.value_or(0);
    shared.set_logprobs(completion.num_logprobs);
  }
  RETURN_IF_ERROR(ReadTextConfig(fields.Find("text"), &request, &shared));
  if (const Json* metadata = fields.Find("metadata")) {
    RETURN_IF_ERROR(CheckMetadata(*metadata));
    request.metadata = metadata->dump();
  }
  v1::Chat& chat = *shared.mutable_chat();
  ASSIGN_OR_RETURN(std::optional<std::string> instructions, fields.String("instructions"));
  if (instructions) {
    request.instructions = JsonString(*instructions);
    AddMessage("system", *std::move(instructions), &chat);
  }
  RETURN_IF_ERROR(ReadInput(fields.Find("input"), &chat));
  completion.prompts.push_back(std::move(shared));
  return request;
}

namespace {

// `system` and `messages` of /v1/messages. Where the last message is the assistant's, the answer
// continues it.
absl::StatusOr<v1::Chat> ReadAnthropicChat(const BodyFields& fields) {
  v1::Chat system;
  if (const Json* text = fields.Find("system")) {
    ASSIGN_OR_RETURN(std::string content, ReadContent("system", *text, kTextParts));
    AddMessage("system", std::move(content), &system);
  }
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) return FieldError("messages", "is missing");
  ASSIGN_OR_RETURN(v1::Chat chat, ReadChatMessages(*messages));
  if (chat.messages().empty()) {
    return FieldError("messages", "is empty; it must have at least one message");
  }
  for (int i = 0; i < chat.messages_size(); ++i) {
    const std::string& role = chat.messages(i).role();
    if (role == "user" || role == "assistant") continue;
    return FieldError(StrCat("messages[", i, "].role"),
                      StrCat("is ", Quote(role), "; it must be \"user\" or \"assistant\""));
  }
  system.MergeFrom(chat);
  if (system.messages().rbegin()->role() == "assistant") system.set_continue_final_message(true);
  return system;
}

absl::StatusOr<AnswerRequest> ReadAnthropic(const Json& body, bool needs_max_tokens) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kMessagesBody, fields));
  AnswerRequest request;
  v1::GenerateRequest shared;
  RETURN_IF_ERROR(ReadGenerateFields(fields, &request.completion, &shared));
  ASSIGN_OR_RETURN(const std::optional<int32_t> max_tokens, fields.Int32("max_tokens"));
  if (!max_tokens && needs_max_tokens) return FieldError("max_tokens", "is missing");
  RETURN_IF_ERROR(SetChatTokens("max_tokens", max_tokens, &request.completion, &shared));
  if (const Json* stops = fields.Find("stop_sequences")) {
    ASSIGN_OR_RETURN(request.stop_sequences, ReadStrings("stop_sequences", *stops));
    for (const std::string& stop : request.stop_sequences) shared.add_stop_strings(stop);
  }
  ASSIGN_OR_RETURN(*shared.mutable_chat(), ReadAnthropicChat(fields));
  request.completion.prompts.push_back(std::move(shared));
  return request;
}

}  // namespace

absl::StatusOr<AnswerRequest> ReadMessage(const Json& body) {
  return ReadAnthropic(body, /*needs_max_tokens=*/true);
}

absl::StatusOr<AnswerRequest> ReadCountedMessage(const Json& body) {
  return ReadAnthropic(body, /*needs_max_tokens=*/false);
}

FieldNames MessageNames(const CompletionRequest& request) {
  FieldNames names = GenerateNames(request, "messages");
  names.insert(names.begin(), {"stop_strings", "stop_sequences"});
  return names;
}

}  // namespace lssar
