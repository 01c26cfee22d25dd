#include "server/http/tool_messages.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/http/request_fields.h"
#include "server/http/tool_calls.h"
#include "server/http/tool_fields.h"

namespace lssar {

using Json = nlohmann::json;

absl::StatusOr<std::string> ToolMessages::ReadCalls(const std::string& field, const Json& calls) {
  if (!calls.is_array()) {
    return FieldError(field, StrCat("is ", TypeName(calls), "; it must be a list of calls"));
  }
  std::string text;
  for (size_t i = 0; i < calls.size(); ++i) {
    ASSIGN_OR_RETURN(const BodyFields call, BodyFields::Of(calls[i], StrCat(field, "[", i, "]")));
    RETURN_IF_ERROR(CheckFields(kToolCall, call));
    RETURN_IF_ERROR(CheckType(call, "function"));
    ASSIGN_OR_RETURN(const BodyFields function, call.RequireObject("function"));
    RETURN_IF_ERROR(CheckFields(kCalledFunction, function));
    ASSIGN_OR_RETURN(const std::string arguments, function.RequireString("arguments"));
    ASSIGN_OR_RETURN(const std::string one, Call(call, "id", function, arguments));
    text += (i == 0 ? "" : "\n") + one;
  }
  return text;
}

absl::StatusOr<std::string> ToolMessages::ReadResult(const BodyFields& message,
                                                     const std::string& content) {
  return Result(message, "tool_call_id", "Result", content);
}

absl::StatusOr<std::string> ToolMessages::ReadCallItem(const BodyFields& item) {
  RETURN_IF_ERROR(CheckFields(kCallItem, item));
  ASSIGN_OR_RETURN(const std::string arguments, item.RequireString("arguments"));
  return Call(item, "call_id", item, arguments);
}

absl::StatusOr<std::string> ToolMessages::ReadOutputItem(const BodyFields& item,
                                                         const std::string& output) {
  RETURN_IF_ERROR(CheckFields(kOutputItem, item));
  return Result(item, "call_id", "Result", output);
}

absl::StatusOr<std::string> ToolMessages::ReadUse(const BodyFields& part) {
  RETURN_IF_ERROR(CheckFields(kToolUse, part));
  ASSIGN_OR_RETURN(const BodyFields input, part.RequireObject("input"));
  return Call(part, "id", part, input.Object().dump());
}

absl::StatusOr<std::string> ToolMessages::ReadUseResult(const BodyFields& part,
                                                        const std::string& content) {
  RETURN_IF_ERROR(CheckFields(kToolResult, part));
  ASSIGN_OR_RETURN(const std::optional<bool> is_error, part.Bool("is_error"));
  return Result(part, "tool_use_id", is_error.value_or(false) ? "Error" : "Result", content);
}

absl::StatusOr<std::string> ToolMessages::Call(const BodyFields& fields, std::string_view id_field,
                                               const BodyFields& function,
                                               const std::string& arguments) {
  ASSIGN_OR_RETURN(std::string id, fields.RequireString(id_field));
  ASSIGN_OR_RETURN(std::string name, ReadFunctionName(function));
  std::string text = CallText(name, arguments);
  names_[std::move(id)] = std::move(name);
  return text;
}

absl::StatusOr<std::string> ToolMessages::Result(const BodyFields& fields,
                                                 std::string_view id_field, std::string_view what,
                                                 const std::string& content) const {
  ASSIGN_OR_RETURN(const std::string id, fields.RequireString(id_field));
  const auto name = names_.find(id);
  if (name == names_.end()) {
    return FieldError(fields.Name(id_field),
                      StrCat("is ", Quote(id), "; no message before it calls with this id"));
  }
  return StrCat(what, " of ", name->second, ":\n", content);
}

}  // namespace lssar
