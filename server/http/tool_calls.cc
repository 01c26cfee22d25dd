#include "server/http/tool_calls.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/grammar.h"
#include "server/http/json_text.h"
#include "server/http/request_fields.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpaces = " \t\r\n";  // JSON's
constexpr std::string_view kNoParameters =
    R"({"type":"object","properties":{},"additionalProperties":false})";

absl::Status CheckType(const BodyFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("type"));
  if (!type) return FieldError(fields.Name("type"), "is missing");
  if (*type == "function") return absl::OkStatus();
  return FieldError(fields.Name("type"), StrCat("is ", Quote(*type), "; it must be \"function\""));
}

absl::StatusOr<BodyFields> ReadObject(const BodyFields& fields, std::string_view name) {
  const Json* const value = fields.Find(name);
  if (value == nullptr) return FieldError(fields.Name(name), "is missing");
  return BodyFields::Of(*value, fields.Name(name));
}

absl::StatusOr<std::string> ReadFunctionName(const BodyFields& function) {
  ASSIGN_OR_RETURN(std::optional<std::string> name, function.String("name"));
  if (!name) return FieldError(function.Name("name"), "is missing");
  const bool is_valid = !name->empty() && name->size() <= kMaxFunctionNameBytes &&
                        std::ranges::all_of(*name, [](char c) {
                          return absl::ascii_isalnum(uint8_t(c)) || c == '_' || c == '-';
                        });
  if (is_valid) return *std::move(name);
  return FieldError(function.Name("name"),
                    StrCat("is ", Quote(*name), "; it must have 1 to ", kMaxFunctionNameBytes,
                           " letters, digits, \"_\" or \"-\""));
}

absl::StatusOr<ForcedCall::Function> ReadFunction(const std::string& field, const Json& tool) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(tool, field));
  RETURN_IF_ERROR(CheckFields(kTool, fields));
  RETURN_IF_ERROR(CheckType(fields));
  ASSIGN_OR_RETURN(const BodyFields function, ReadObject(fields, "function"));
  RETURN_IF_ERROR(CheckFields(kFunction, function));
  RETURN_IF_ERROR(function.String("description").status());
  RETURN_IF_ERROR(function.Bool("strict").status());  // the schema is enforced in any case
  ForcedCall::Function read;
  ASSIGN_OR_RETURN(read.name, ReadFunctionName(function));
  if (const Json* const parameters = function.Find("parameters");
      parameters != nullptr && *parameters != Json::object()) {
    const bool is_object = parameters->is_object() &&
                           (parameters->contains("type") ? parameters->at("type") == "object"
                                                         : parameters->contains("properties") ||
                                                               parameters->contains("$ref"));
    if (!is_object) {
      return FieldError(function.Name("parameters"), "must be a JSON Schema of type object");
    }
    read.has_parameters = true;
    read.has_id = parameters->contains("$id");
  }
  return read;
}

absl::StatusOr<std::vector<ForcedCall::Function>> ReadFunctions(const BodyFields& fields) {
  std::vector<ForcedCall::Function> functions;
  ASSIGN_OR_RETURN(const Json* const tools, fields.List("tools", "functions"));
  if (tools == nullptr) return functions;
  if (tools->size() > kMaxTools) {
    return FieldError("tools", StrCat("has ", tools->size(), " entries; it may have ", kMaxTools));
  }
  for (const Json& tool : *tools) {
    const std::string field = StrCat("tools[", functions.size(), "]");
    ASSIGN_OR_RETURN(ForcedCall::Function function, ReadFunction(field, tool));
    function.position = functions.size();
    if (std::ranges::count(functions, function.name, &ForcedCall::Function::name) > 0) {
      return FieldError(field + ".function.name",
                        StrCat("is ", Quote(function.name), ", which an entry before it has, too"));
    }
    functions.push_back(std::move(function));
  }
  return functions;
}

// Those of `functions` of which tool_choice demands one.
absl::StatusOr<std::vector<ForcedCall::Function>> ReadChoice(
    const BodyFields& fields, std::vector<ForcedCall::Function> functions) {
  const Json* const choice = fields.Find("tool_choice");
  const bool is_auto = choice == nullptr || *choice == "auto";
  if ((is_auto && functions.empty()) || (choice != nullptr && *choice == "none")) {
    return std::vector<ForcedCall::Function>();
  }
  if (is_auto) {
    return FieldError("tool_choice",
                      StrCat(choice == nullptr ? "is missing, which means" : "is",
                             " \"auto\"; no model decides here whether to call a function: it must "
                             "be \"required\", a function or \"none\""));
  }
  if (functions.empty()) return FieldError("tool_choice", "is set, and there are no tools");
  if (*choice == "required") return functions;
  if (!choice->is_object()) {
    return FieldError("tool_choice", StrCat("is ",
                                            choice->is_string() ? Quote(choice->get<std::string>())
                                                                : std::string(TypeName(*choice)),
                                            "; it must be \"required\", a function or \"none\""));
  }
  ASSIGN_OR_RETURN(const BodyFields object, BodyFields::Of(*choice, "tool_choice"));
  RETURN_IF_ERROR(CheckFields(kTool, object));
  RETURN_IF_ERROR(CheckType(object));
  ASSIGN_OR_RETURN(const BodyFields function, ReadObject(object, "function"));
  RETURN_IF_ERROR(CheckFields(kChosenFunction, function));
  ASSIGN_OR_RETURN(const std::string name, ReadFunctionName(function));
  const auto found = std::ranges::find(functions, name, &ForcedCall::Function::name);
  if (found == functions.end()) {
    return FieldError(function.Name("name"), StrCat("is ", Quote(name), ", which is not in tools"));
  }
  return std::vector<ForcedCall::Function>{std::move(*found)};
}

std::string CallText(std::string_view name, std::string_view arguments) {
  return StrCat("{\"name\": \"", name, "\", \"arguments\": ", arguments, "}");
}

// One of several calls. References within the parameters start at their $id.
std::string SchemaOfOne(const ForcedCall& call, const std::vector<std::string>& parameters) {
  std::string options, definitions;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string comma = i == 0 ? "" : ",";
    options += StrCat(comma, R"({"type":"object","properties":{"name":{"const":")",
                      call.functions[i].name, R"("},"arguments":{"$ref":"#/$defs/)", i,
                      R"("}},"required":["name","arguments"],"additionalProperties":false})");
    const std::string id = call.functions[i].has_id ? "" : StrCat(R"("$id":")", i, "\"");
    const std::string_view rest = std::string_view(parameters[i]).substr(1);
    definitions += StrCat(comma, "\"", i, "\":{", id, id.empty() || rest == "}" ? "" : ",", rest);
  }
  return StrCat(R"({"anyOf":[)", options, R"(],"$defs":{)", definitions, "}}");
}

}  // namespace

absl::StatusOr<ForcedCall> ReadForcedCall(const BodyFields& fields, ConstraintField* constraint) {
  ASSIGN_OR_RETURN(std::vector<ForcedCall::Function> functions, ReadFunctions(fields));
  ASSIGN_OR_RETURN(functions, ReadChoice(fields, std::move(functions)));
  ForcedCall call{.functions = std::move(functions)};
  if (!call.IsForced()) return call;
  if (!constraint->name.empty()) {
    return FieldError(constraint->name, "and tool_choice both constrain the text; send one");
  }
  if (!GrammarCompiler::IsAvailable()) {
    return FieldError("tool_choice",
                      "is set; this build cannot constrain the output, for it has no xgrammar");
  }
  constraint->name = call.functions.size() == 1
                         ? StrCat("tools[", call.functions[0].position, "].function.parameters")
                         : "tools";
  return call;
}

absl::Status ForceCall(std::string_view body, const ForcedCall& call,
                       v1::GenerateRequest* request) {
  const std::string tools = JsonAt(body, std::array<std::string, 1>{"tools"});
  // They are read once more for each function.
  if (tools.size() > kMaxGrammarBytes) {
    return FieldError("tools",
                      StrCat("has ", tools.size(), " bytes; it may have ", kMaxGrammarBytes));
  }
  std::string descriptions;
  std::vector<std::string> parameters;
  for (const ForcedCall::Function& function : call.functions) {
    const std::string description =
        JsonAt(tools, std::array<std::string, 2>{StrCat(function.position), "function"});
    descriptions += description + "\n";
    parameters.push_back(function.has_parameters
                             ? JsonAt(description, std::array<std::string, 1>{"parameters"})
                             : std::string(kNoParameters));
  }
  const bool is_one = parameters.size() == 1;
  request->set_json_schema(is_one ? parameters[0] : SchemaOfOne(call, parameters));

  if (request->chat().messages().empty()) return absl::OkStatus();  // an error, and told later
  const std::string task =
      is_one ? StrCat("Call this function:\n", descriptions,
                      "Answer with its arguments alone, as JSON.")
             : StrCat("Call one of these functions:\n", descriptions,
                      "Answer with the call alone, as JSON: ", CallText("...", "{...}"));
  v1::ChatMessage& first = *request->mutable_chat()->mutable_messages(0);
  first.set_content(first.role() == "system" ? StrCat(first.content(), "\n\n", task)
                                             : StrCat(task, "\n\n", first.content()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ToolMessages::ReadCalls(const std::string& field, const Json& calls) {
  if (!calls.is_array()) {
    return FieldError(field, StrCat("is ", TypeName(calls), "; it must be a list of calls"));
  }
  std::string text;
  for (size_t i = 0; i < calls.size(); ++i) {
    ASSIGN_OR_RETURN(const BodyFields call, BodyFields::Of(calls[i], StrCat(field, "[", i, "]")));
    RETURN_IF_ERROR(CheckFields(kToolCall, call));
    RETURN_IF_ERROR(CheckType(call));
    ASSIGN_OR_RETURN(const std::optional<std::string> id, call.String("id"));
    if (!id) return FieldError(call.Name("id"), "is missing");
    ASSIGN_OR_RETURN(const BodyFields function, ReadObject(call, "function"));
    RETURN_IF_ERROR(CheckFields(kCalledFunction, function));
    ASSIGN_OR_RETURN(std::string name, ReadFunctionName(function));
    ASSIGN_OR_RETURN(const std::optional<std::string> arguments, function.String("arguments"));
    if (!arguments) return FieldError(function.Name("arguments"), "is missing");
    text += StrCat(i == 0 ? "" : "\n", CallText(name, *arguments));
    names_[*id] = std::move(name);
  }
  return text;
}

absl::StatusOr<std::string> ToolMessages::ReadResult(const BodyFields& message,
                                                     const std::string& content) {
  ASSIGN_OR_RETURN(const std::optional<std::string> id, message.String("tool_call_id"));
  if (!id) return FieldError(message.Name("tool_call_id"), "is missing");
  const auto name = names_.find(*id);
  if (name == names_.end()) {
    return FieldError(message.Name("tool_call_id"),
                      StrCat("is ", Quote(*id), "; no message before it calls with this id"));
  }
  return StrCat("Result of ", name->second, ":\n", content);
}

ToolCallText::ToolCallText(const ForcedCall& call) : has_frame_(call.functions.size() > 1) {
  if (call.functions.size() == 1) name_ = call.functions[0].name;
}

void ToolCallText::Add(std::string_view text) {
  text_ += text;
  if (!has_frame_ || !name_.empty()) return;
  // {"name": "...", "arguments": with any white space: names need no escapes.
  constexpr std::string_view kKey = "\"arguments\"";
  for (size_t key = text_.find(kKey); key != std::string::npos; key = text_.find(kKey, key + 1)) {
    const size_t colon = text_.find_first_not_of(kSpaces, key + kKey.size());
    if (colon == std::string::npos || text_[colon] != ':') continue;  // a function of this name
    const size_t end = text_.rfind('"', key - 1);
    const size_t begin = text_.rfind('"', end - 1) + 1;
    name_ = text_.substr(begin, end - begin);
    text_.erase(0, colon + 1);
    return;
  }
}

void ToolCallText::End(bool is_whole) {
  has_ended_ = true;
  if (!has_frame_ || name_.empty() || !is_whole) return;
  text_.erase(std::min(text_.rfind('}'), text_.size()));
  text_.erase(text_.find_last_not_of(kSpaces) + 1);
}

std::string ToolCallText::TakeArguments() {
  if (name_.empty()) return {};
  if (!has_frame_) return std::exchange(text_, {});
  if (!has_begun_) text_.erase(0, text_.find_first_not_of(kSpaces));
  // What may be the frame's end waits.
  const size_t end = has_ended_ ? text_.size() : text_.find_last_not_of("} \t\r\n") + 1;
  has_begun_ |= end > 0;
  std::string taken = text_.substr(0, end);
  text_.erase(0, end);
  return taken;
}

}  // namespace lssar
