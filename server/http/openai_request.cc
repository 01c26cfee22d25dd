#include "server/http/openai_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/fields.h"
#include "server/api/parse_request.h"
#include "server/config/limits.h"
#include "server/http/request_fields.h"
#include "server/http/tool_messages.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPrompts = limits::kMaxScoreItems;
// OpenAI's default.
constexpr int kDefaultCompletionTokens = 16;

// The two names of one limit say the same.
absl::Status CheckSameTokens(std::optional<int32_t> max_tokens,
                             std::optional<int32_t> max_completion_tokens) {
  if (!max_tokens || max_completion_tokens.value_or(*max_tokens) == *max_tokens) {
    return absl::OkStatus();
  }
  return FieldError("max_completion_tokens",
                    StrCat("is ", *max_completion_tokens, "; it must be max_tokens ", *max_tokens,
                           " or left out"));
}

// `shared` with a prompt.
absl::StatusOr<v1::GenerateRequest> WithText(const v1::GenerateRequest& shared,
                                             const std::string& field, std::string text,
                                             bool add_special_tokens, const ParseContext& context) {
  v1::GenerateRequest request = shared;
  if (add_special_tokens) {
    request.set_text(std::move(text));
    return request;
  }
  if (text.empty()) return FieldError(field, "is empty; it must have at least one character");
  ASSIGN_OR_RETURN(const auto ids, EncodeField(field, text, context, {}));
  request.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return request;
}

v1::GenerateRequest WithIds(const v1::GenerateRequest& shared, const std::vector<int32_t>& ids) {
  v1::GenerateRequest request = shared;
  request.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return request;
}

absl::Status ReadPrompts(const BodyFields& fields, const v1::GenerateRequest& shared,
                         const ParseContext& context, CompletionRequest* request) {
  ASSIGN_OR_RETURN(const Json* const prompt, fields.Require("prompt"));
  ASSIGN_OR_RETURN(const std::optional<bool> special, fields.Bool("add_special_tokens"));
  const bool add_special_tokens = special.value_or(true);
  const auto add_text = [&](const std::string& field, const Json& text) -> absl::Status {
    ASSIGN_OR_RETURN(v1::GenerateRequest one,
                     WithText(shared, field, text.get<std::string>(), add_special_tokens, context));
    request->prompts.push_back(std::move(one));
    return absl::OkStatus();
  };
  if (prompt->is_string()) return add_text("prompt", *prompt);
  if (!prompt->is_array()) {
    return FieldError("prompt", StrCat("is ", TypeName(*prompt),
                                       "; it must be a string, a list of strings, a list of token "
                                       "ids or a list of lists of token ids"));
  }
  if (prompt->empty()) return FieldError("prompt", "is an empty list; it must have an entry");
  if (prompt->front().is_number()) {
    ASSIGN_OR_RETURN(const auto ids, ReadIds("prompt", *prompt));
    request->prompts.push_back(WithIds(shared, ids));
    return absl::OkStatus();
  }
  if (prompt->size() > kMaxPrompts) {
    return FieldError("prompt",
                      StrCat("has ", prompt->size(), " entries; it may have ", kMaxPrompts));
  }
  // Each prompt becomes a request with its own copy of the other fields.
  const size_t num_bytes = shared.ByteSizeLong() * prompt->size();
  if (num_bytes > limits::kMaxMessageBytes) {
    return FieldError("prompt", StrCat("has ", prompt->size(), " entries, and the other fields ",
                                       shared.ByteSizeLong(), " bytes for each; they may have ",
                                       limits::kMaxMessageBytes, " together"));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    const std::string field = StrCat("prompt[", i, "]");
    const Json& one = (*prompt)[i];
    if (one.is_string() && prompt->front().is_string()) {
      RETURN_IF_ERROR(add_text(field, one));
    } else if (one.is_array() && prompt->front().is_array()) {
      ASSIGN_OR_RETURN(const auto ids, ReadIds(field, one));
      request->prompts.push_back(WithIds(shared, ids));
    } else {
      return FieldError(field,
                        StrCat("is ", TypeName(one), "; all entries of prompt must be ",
                               prompt->front().is_array() ? "lists of token ids" : "strings"));
    }
  }
  return absl::OkStatus();
}

// `tools`: of the messages before.
absl::StatusOr<v1::ChatMessage> ReadChatMessage(const std::string& field, const Json& value,
                                                ToolMessages* tools) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(value, field));
  ASSIGN_OR_RETURN(std::string role, fields.RequireString("role"));
  RETURN_IF_ERROR(CheckFields(kMessage, fields));
  const Json* const calls = fields.Find("tool_calls");
  const bool has_calls = calls != nullptr && *calls != Json::array();
  if (has_calls && role != "assistant") {
    return FieldError(field + ".tool_calls", "is set; only an assistant's message may have it");
  }
  if (role != "tool" && fields.Find("tool_call_id") != nullptr) {
    return FieldError(field + ".tool_call_id", "is set; only a tool's message may have it");
  }
  v1::ChatMessage message;
  if (const Json* const content = fields.Find("content")) {
    ASSIGN_OR_RETURN(*message.mutable_content(),
                     ReadContent(field + ".content", *content, kTextParts));
  } else if (!has_calls) {
    return FieldError(field + ".content", "is missing");
  }
  if (has_calls) {
    ASSIGN_OR_RETURN(const std::string text, tools->ReadCalls(field + ".tool_calls", *calls));
    message.set_content(StrCat(message.content(), message.content().empty() ? "" : "\n", text));
  }
  if (role == "tool") {
    ASSIGN_OR_RETURN(*message.mutable_content(), tools->ReadResult(fields, message.content()));
    role = "user";
  }
  if (role == "developer") role = "system";  // OpenAI's newer name for it
  message.set_role(std::move(role));
  return message;
}

}  // namespace

absl::StatusOr<std::string> ReadContent(const std::string& field, const Json& content,
                                        std::span<const std::string_view> types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return FieldError(
        field, StrCat("is ", TypeName(content), "; it must be a string or a list of text parts"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string part,
                     ReadTextPart(StrCat(field, "[", i, "]"), content[i], types));
    text += part;
  }
  return text;
}

absl::StatusOr<std::string> ReadTextPart(const std::string& field, const Json& part,
                                         std::span<const std::string_view> types) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(part, field));
  ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("type"));
  ASSIGN_OR_RETURN(std::optional<std::string> text, fields.String("text"));
  if (!type || std::ranges::count(types, *type) == 0 || !text) {
    return FieldError(field, "is no text part; this server's models read text alone");
  }
  RETURN_IF_ERROR(CheckFields(kContentPart, fields));
  return *std::move(text);
}

absl::StatusOr<std::string> ReadModelName(const Json& body, const LoadedModel& served) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  ASSIGN_OR_RETURN(std::optional<std::string> model, fields.String("model"));
  if (!model) return served.ServedNames().front();
  RETURN_IF_ERROR(served.CheckName(*model));
  return *std::move(model);
}

absl::StatusOr<CompletionRequest> ReadCompletion(const Json& body, const ParseContext& context) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kCompletionBody, fields));
  CompletionRequest request;
  v1::GenerateRequest shared;
  RETURN_IF_ERROR(ReadGenerateFields(fields, &request, &shared));

  ASSIGN_OR_RETURN(const std::optional<bool> echo, fields.Bool("echo"));
  request.echo = echo.value_or(false);
  shared.set_echo(request.echo);
  ASSIGN_OR_RETURN(const std::optional<int32_t> logprobs, fields.Int32("logprobs"));
  if (logprobs) {
    request.num_logprobs = *logprobs;
    shared.set_logprobs(request.num_logprobs);
    if (request.echo) {
      shared.set_prompt_logprobs(std::max(request.num_logprobs, request.num_prompt_logprobs));
    }
  }
  ASSIGN_OR_RETURN(std::optional<int32_t> max_tokens, fields.Int32("max_tokens"));
  ASSIGN_OR_RETURN(const std::optional<int32_t> newer_name, fields.Int32("max_completion_tokens"));
  RETURN_IF_ERROR(CheckSameTokens(max_tokens, newer_name));
  if (!max_tokens) max_tokens = newer_name;
  if (newer_name) request.max_tokens_field = "max_completion_tokens";
  if (max_tokens && *max_tokens < 0) {
    return FieldError(request.max_tokens_field,
                      StrCat("is ", *max_tokens, "; it must not be negative"));
  }
  request.max_tokens = max_tokens.value_or(kDefaultCompletionTokens);
  if (request.max_tokens == 0 && shared.min_tokens() != 0) {
    return ValueError("min_tokens", shared.min_tokens(),
                      StrCat("0 where ", request.max_tokens_field, " is 0"));
  }
  if (max_tokens) shared.set_max_tokens(request.max_tokens);
  const Json* prompt = fields.Find("prompt");
  const bool is_list =
      prompt != nullptr && prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  RETURN_IF_ERROR(CheckConstraintBytes(request.constraint, shared, is_list ? prompt->size() : 1));
  RETURN_IF_ERROR(ReadPrompts(fields, shared, context, &request));
  return request;
}

void AddBosForLmEval(const ParseContext& context, CompletionRequest* request) {
  const Checkpoint& checkpoint = *context.checkpoint;
  const std::optional<int32_t> bos = checkpoint.config.bos_id;
  const std::optional<int32_t> prefix = bos ? bos : checkpoint.config.eos_id;
  if (request->echo && request->num_logprobs >= 0 && request->max_tokens == 1) {
    request->max_tokens = 0;
    for (v1::GenerateRequest& prompt : request->prompts) prompt.set_max_tokens(0);
  }
  for (v1::GenerateRequest& prompt : request->prompts) {
    request->has_added_bos.push_back(false);
    if (!prompt.has_tokens()) continue;
    auto& ids = *prompt.mutable_tokens()->mutable_ids();
    if (ids.empty()) {
      if (prefix) ids.Add(*prefix);
      continue;
    }
    const int64_t length = int64_t{ids.size()} + 1 + request->max_tokens;
    if (!checkpoint.add_bos || !bos || ids.Get(0) == *bos || length > context.max_model_len) {
      continue;
    }
    ids.Add(*bos);
    std::rotate(ids.begin(), ids.end() - 1, ids.end());
    request->has_added_bos.back() = true;
  }
}

absl::StatusOr<CompletionRequest> ReadChatCompletion(const Json& body) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kChatBody, fields));
  CompletionRequest request;
  v1::GenerateRequest shared;
  RETURN_IF_ERROR(ReadGenerateFields(fields, &request, &shared));

  ASSIGN_OR_RETURN(const std::optional<bool> logprobs, fields.Bool("logprobs"));
  ASSIGN_OR_RETURN(const std::optional<int32_t> top, fields.Int32("top_logprobs"));
  if (top && !logprobs.value_or(false)) {
    return FieldError("top_logprobs", "is set; it may be set only where logprobs is true");
  }
  if (logprobs.value_or(false)) {
    request.num_logprobs = top.value_or(0);
    shared.set_logprobs(request.num_logprobs);
  }

  ASSIGN_OR_RETURN(const std::optional<int32_t> max_tokens, fields.Int32("max_tokens"));
  ASSIGN_OR_RETURN(const std::optional<int32_t> newer_name, fields.Int32("max_completion_tokens"));
  RETURN_IF_ERROR(CheckSameTokens(max_tokens, newer_name));
  RETURN_IF_ERROR(newer_name ? SetChatTokens("max_completion_tokens", newer_name, &request, &shared)
                             : SetChatTokens("max_tokens", max_tokens, &request, &shared));

  ASSIGN_OR_RETURN(request.tools, ReadToolChoice(fields, ToolDialect::kChat, &request.constraint));
  ASSIGN_OR_RETURN(const Json* const messages, fields.Require("messages"));
  ASSIGN_OR_RETURN(*shared.mutable_chat(), ReadChatMessages(*messages));
  RETURN_IF_ERROR(ReadChatEnd(fields, shared.mutable_chat()));
  request.prompts.push_back(std::move(shared));
  return request;
}

absl::Status SetChatTokens(const std::string& field, std::optional<int32_t> max_tokens,
                           CompletionRequest* request, v1::GenerateRequest* shared) {
  request->is_chat = true;
  request->max_tokens = std::numeric_limits<int>::max();
  request->max_tokens_field = field;
  if (!max_tokens) return absl::OkStatus();
  if (*max_tokens < 1) {
    return FieldError(field, StrCat("is ", *max_tokens, "; it must be at least 1"));
  }
  request->max_tokens = *max_tokens;
  shared->set_max_tokens(request->max_tokens);
  return absl::OkStatus();
}

absl::Status ReadChatEnd(const BodyFields& fields, v1::Chat* chat) {
  ASSIGN_OR_RETURN(const std::optional<bool> prompt, fields.Bool("add_generation_prompt"));
  if (prompt) chat->set_add_generation_prompt(*prompt);
  ASSIGN_OR_RETURN(const std::optional<bool> continues, fields.Bool("continue_final_message"));
  if (continues) chat->set_continue_final_message(*continues);
  return absl::OkStatus();
}

absl::StatusOr<v1::Chat> ReadChatMessages(const Json& messages) {
  if (!messages.is_array()) {
    return FieldError("messages", StrCat("is ", TypeName(messages), "; it must be a list"));
  }
  v1::Chat chat;
  ToolMessages tools;
  for (size_t i = 0; i < messages.size(); ++i) {
    ASSIGN_OR_RETURN(*chat.add_messages(),
                     ReadChatMessage(StrCat("messages[", i, "]"), messages[i], &tools));
  }
  return chat;
}

FieldNames GenerateNames(const CompletionRequest& request, const std::string& prompt_field) {
  FieldNames names = PromptNames(prompt_field);
  names.push_back({"stop_strings", "stop"});
  names.push_back({"max_tokens", request.max_tokens_field});
  if (request.is_chat) names.push_back({"logprobs", "top_logprobs"});
  for (const char* const v1 :
       {"json_object", "json_schema", "regex", "grammar", "choice", "json_schema_or_text"}) {
    names.push_back({v1, request.constraint.name});
  }
  return names;
}

}  // namespace lssar
