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
#include "server/http/tool_messages.h"

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

// The same, in the message before where it has the same role.
void ContinueMessage(std::string role, const std::string& content, v1::Chat* chat) {
  if (chat->messages().empty() || chat->messages().rbegin()->role() != role) {
    AddMessage(std::move(role), content, chat);
  } else {
    chat->mutable_messages()->rbegin()->mutable_content()->append("\n" + content);
  }
}

// An element of `input`: a message, a call of a function, or its result; also of an earlier answer.
absl::Status ReadInputItem(const std::string& field, const Json& item, ToolMessages* tools,
                           v1::Chat* chat) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(item, field));
  ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("type"));
  if (type == "function_call") {
    ASSIGN_OR_RETURN(const std::string call, tools->ReadCallItem(fields));
    ContinueMessage("assistant", call, chat);
    return absl::OkStatus();
  }
  if (type == "function_call_output") {
    ASSIGN_OR_RETURN(const Json* const output, fields.Require("output"));
    ASSIGN_OR_RETURN(const std::string text,
                     ReadContent(field + ".output", *output, kResponseParts));
    ASSIGN_OR_RETURN(const std::string result, tools->ReadOutputItem(fields, text));
    ContinueMessage("user", result, chat);
    return absl::OkStatus();
  }
  if (type.value_or("message") != "message") {
    return FieldError(field + ".type", StrCat("is ", Quote(*type),
                                              "; it must be \"message\", \"function_call\" or "
                                              "\"function_call_output\""));
  }
  RETURN_IF_ERROR(CheckFields(kInputItem, fields));
  ASSIGN_OR_RETURN(std::string role, fields.RequireString("role"));
  if (role == "developer") role = "system";
  if (role != "user" && role != "assistant" && role != "system") {
    return FieldError(field + ".role",
                      StrCat("is ", Quote(role),
                             "; it must be \"user\", \"assistant\", \"system\" or \"developer\""));
  }
  ASSIGN_OR_RETURN(const Json* const content, fields.Require("content"));
  ASSIGN_OR_RETURN(std::string text, ReadContent(field + ".content", *content, kResponseParts));
  AddMessage(std::move(role), std::move(text), chat);
  return absl::OkStatus();
}

absl::Status ReadInput(const BodyFields& fields, v1::Chat* chat) {
  ASSIGN_OR_RETURN(const Json* const input, fields.Require("input"));
  if (input->is_string()) {
    AddMessage("user", input->get<std::string>(), chat);
    return absl::OkStatus();
  }
  if (!input->is_array() || input->empty()) {
    return FieldError("input", StrCat("is ", TypeName(*input),
                                      "; it must be a string or a list of messages, at least one"));
  }
  ToolMessages tools;
  for (size_t i = 0; i < input->size(); ++i) {
    RETURN_IF_ERROR(ReadInputItem(StrCat("input[", i, "]"), (*input)[i], &tools, chat));
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
  ASSIGN_OR_RETURN(completion.tools,
                   ReadToolChoice(fields, ToolDialect::kResponses, &completion.constraint));
  if (const Json* const tools = fields.Find("tools"); tools != nullptr && !tools->empty()) {
    const Json* const choice = fields.Find("tool_choice");
    request.tools = tools->dump();
    request.tool_choice = choice == nullptr ? "\"auto\"" : choice->dump();
  }
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
  RETURN_IF_ERROR(ReadInput(fields, &chat));
  completion.prompts.push_back(std::move(shared));
  return request;
}

namespace {

// A part of the content of a message of `role`: a text, a call of a function, or its result.
absl::StatusOr<std::string> ReadAnthropicPart(const std::string& field, const Json& value,
                                              std::string_view role, ToolMessages* tools) {
  ASSIGN_OR_RETURN(const BodyFields part, BodyFields::Of(value, field));
  ASSIGN_OR_RETURN(const std::optional<std::string> type, part.String("type"));
  const bool is_use = type == "tool_use";
  if (!is_use && type != "tool_result") return ReadTextPart(field, value, kTextParts);
  if (role != (is_use ? "assistant" : "user")) {
    return FieldError(field + ".type",
                      StrCat("is ", Quote(*type), "; only ", is_use ? "an assistant's" : "a user's",
                             " message may have it"));
  }
  if (is_use) return tools->ReadUse(part);
  std::string result;
  if (const Json* const content = part.Find("content")) {
    ASSIGN_OR_RETURN(result, ReadContent(field + ".content", *content, kTextParts));
  }
  return tools->ReadUseResult(part, result);
}

// An element of `messages` of /v1/messages. Calls and results stand in lines of their own.
absl::Status ReadAnthropicMessage(const std::string& field, const Json& value, ToolMessages* tools,
                                  v1::Chat* chat) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(value, field));
  RETURN_IF_ERROR(CheckFields(kAnthropicMessage, fields));
  ASSIGN_OR_RETURN(std::string role, fields.RequireString("role"));
  if (role != "user" && role != "assistant") {
    return FieldError(field + ".role",
                      StrCat("is ", Quote(role), "; it must be \"user\" or \"assistant\""));
  }
  ASSIGN_OR_RETURN(const Json* const content, fields.Require("content"));
  std::string text;
  if (!content->is_array()) {
    ASSIGN_OR_RETURN(text, ReadContent(field + ".content", *content, kTextParts));
  } else {
    bool was_text = true;
    for (size_t i = 0; i < content->size(); ++i) {
      const Json& part = (*content)[i];
      ASSIGN_OR_RETURN(const std::string one,
                       ReadAnthropicPart(StrCat(field, ".content[", i, "]"), part, role, tools));
      const bool is_text = part["type"] == "text";
      if (!text.empty() && !(is_text && was_text)) text += '\n';
      text += one;
      was_text = is_text;
    }
  }
  AddMessage(std::move(role), std::move(text), chat);
  return absl::OkStatus();
}

// `system` and `messages` of /v1/messages. Where the last message is the assistant's, the answer
// continues it.
absl::StatusOr<v1::Chat> ReadAnthropicChat(const BodyFields& fields) {
  v1::Chat chat;
  if (const Json* text = fields.Find("system")) {
    ASSIGN_OR_RETURN(std::string content, ReadContent("system", *text, kTextParts));
    AddMessage("system", std::move(content), &chat);
  }
  ASSIGN_OR_RETURN(const Json* const messages, fields.Require("messages"));
  if (!messages->is_array() || messages->empty()) {
    return FieldError("messages",
                      StrCat("is ", messages->is_array() ? "empty" : TypeName(*messages),
                             "; it must be a list of messages, at least one"));
  }
  ToolMessages tools;
  for (size_t i = 0; i < messages->size(); ++i) {
    RETURN_IF_ERROR(
        ReadAnthropicMessage(StrCat("messages[", i, "]"), (*messages)[i], &tools, &chat));
  }
  if (chat.messages().rbegin()->role() == "assistant") chat.set_continue_final_message(true);
  return chat;
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
  ASSIGN_OR_RETURN(request.completion.tools,
                   ReadToolChoice(fields, ToolDialect::kMessages, &request.completion.constraint));
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
