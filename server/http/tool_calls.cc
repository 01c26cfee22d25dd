#include "server/http/tool_calls.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/grammar.h"
#include "server/http/json_text.h"
#include "server/http/request_fields.h"
#include "server/http/tool_fields.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpaces = " \t\r\n";  // JSON's
constexpr std::string_view kNoParameters =
    R"({"type":"object","properties":{},"additionalProperties":false})";

// How a dialect writes its tools.
struct Form {
  bool is_nested = false;  // a function is tools[i].function, not tools[i]
  std::string_view parameters;
  BodyKinds tool = 0, function = 0;
  // What tool_choice is where it is an object, and the words for a call of any function and of one.
  BodyKinds choice = 0;
  std::string_view any, one;
};

const Form& FormOf(ToolDialect dialect) {
  static constexpr Form kChat = {.is_nested = true,
                                 .parameters = "parameters",
                                 .tool = kTool,
                                 .function = kFunction,
                                 .choice = kTool,
                                 .any = "required",
                                 .one = "function"};
  static constexpr Form kResponses = {.parameters = "parameters",
                                      .tool = kResponsesTool,
                                      .function = kResponsesTool,
                                      .choice = kResponsesChoice,
                                      .any = "required",
                                      .one = "function"};
  static constexpr Form kMessages = {.parameters = "input_schema",
                                     .tool = kMessagesTool,
                                     .function = kMessagesTool,
                                     .choice = kMessagesChoice,
                                     .any = "any",
                                     .one = "tool"};
  switch (dialect) {
    case ToolDialect::kChat: return kChat;
    case ToolDialect::kResponses: return kResponses;
    case ToolDialect::kMessages: break;
  }
  return kMessages;
}

std::string FunctionField(const ToolChoice& choice, const ToolChoice::Function& function) {
  return StrCat("tools[", function.position, "]",
                FormOf(choice.dialect).is_nested ? ".function" : "");
}

absl::StatusOr<ToolChoice::Function> ReadFunction(ToolDialect dialect, const std::string& field,
                                                  const Json& tool) {
  const Form& form = FormOf(dialect);
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(tool, field));
  if (dialect == ToolDialect::kMessages) {
    ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("type"));
    if (type && *type != "custom") return TypeError(fields, *type, "custom");
  } else {
    RETURN_IF_ERROR(CheckType(fields, "function"));
  }
  RETURN_IF_ERROR(CheckFields(form.tool, fields));
  BodyFields function = fields;
  if (form.is_nested) {
    ASSIGN_OR_RETURN(function, fields.RequireObject("function"));
    RETURN_IF_ERROR(CheckFields(form.function, function));
  }
  RETURN_IF_ERROR(function.String("description").status());
  RETURN_IF_ERROR(function.Bool("strict").status());  // the schema is enforced in any case
  ASSIGN_OR_RETURN(const Json* const examples, function.List("input_examples", "objects"));
  for (size_t i = 0; examples != nullptr && i < examples->size(); ++i) {
    const std::string name = StrCat(function.Name("input_examples"), "[", i, "]");
    RETURN_IF_ERROR(BodyFields::Of((*examples)[i], name).status());
  }
  if (function.Find("output_schema") != nullptr) {
    RETURN_IF_ERROR(function.RequireObject("output_schema").status());
  }
  ToolChoice::Function read;
  ASSIGN_OR_RETURN(read.name, ReadFunctionName(function));
  if (const Json* const parameters = function.Find(form.parameters);
      parameters != nullptr && *parameters != Json::object()) {
    const bool is_object = parameters->is_object() &&
                           (parameters->contains("type") ? parameters->at("type") == "object"
                                                         : parameters->contains("properties") ||
                                                               parameters->contains("$ref"));
    if (!is_object) {
      return FieldError(function.Name(form.parameters), "must be a JSON Schema of type object");
    }
    read.has_parameters = true;
    read.has_id = parameters->contains("$id");
  }
  return read;
}

absl::StatusOr<std::vector<ToolChoice::Function>> ReadFunctions(const BodyFields& fields,
                                                                ToolDialect dialect) {
  std::vector<ToolChoice::Function> functions;
  ASSIGN_OR_RETURN(const Json* const tools, fields.List("tools", "functions"));
  if (tools == nullptr) return functions;
  if (tools->size() > kMaxTools) {
    return FieldError("tools", StrCat("has ", tools->size(), " entries; it may have ", kMaxTools));
  }
  for (const Json& tool : *tools) {
    const std::string field = StrCat("tools[", functions.size(), "]");
    ASSIGN_OR_RETURN(ToolChoice::Function function, ReadFunction(dialect, field, tool));
    function.position = functions.size();
    if (std::ranges::count(functions, function.name, &ToolChoice::Function::name) > 0) {
      return FieldError(StrCat(field, FormOf(dialect).is_nested ? ".function" : "", ".name"),
                        StrCat("is ", Quote(function.name), ", which an entry before it has, too"));
    }
    functions.push_back(std::move(function));
  }
  return functions;
}

// What tool_choice is: "auto", "none", or the dialect's words for any function and for one. The
// object of the last is `one`.
struct ChoiceWord {
  std::string word;
  const Json* one = nullptr;
};

absl::StatusOr<ChoiceWord> ReadWord(const BodyFields& fields, ToolDialect dialect) {
  const Json* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return ChoiceWord{"auto"};
  const Form& form = FormOf(dialect);
  const bool is_messages = dialect == ToolDialect::kMessages;
  std::string word, field = "tool_choice";
  if (choice->is_string() && !is_messages) {
    word = choice->get<std::string>();
    if (word == "auto" || word == "none" || word == form.any) return ChoiceWord{std::move(word)};
  } else if (choice->is_object()) {
    ASSIGN_OR_RETURN(const BodyFields object, BodyFields::Of(*choice, field));
    ASSIGN_OR_RETURN(word, object.RequireString("type"));
    field = object.Name("type");
    const bool is_word =
        word == form.one || (is_messages && (word == "auto" || word == "none" || word == form.any));
    if (is_word) {
      RETURN_IF_ERROR(CheckFields(form.choice, object));
      RETURN_IF_ERROR(object.String("name").status());
      const bool is_one = word == form.one;
      return ChoiceWord{std::move(word), is_one ? choice : nullptr};
    }
    if (!is_messages) return TypeError(object, word, form.one);
  } else {
    return FieldError(field, StrCat("is ", TypeName(*choice), "; it must be ",
                                    is_messages ? "an object" : "a string or a function"));
  }
  return FieldError(field, StrCat("is ", Quote(word), "; it must be \"auto\", \"", form.any, "\", ",
                                  is_messages ? "\"tool\"" : "a function", " or \"none\""));
}

absl::StatusOr<std::string> ReadChosenName(const Json& choice, ToolDialect dialect) {
  ASSIGN_OR_RETURN(const BodyFields object, BodyFields::Of(choice, "tool_choice"));
  if (!FormOf(dialect).is_nested) return ReadFunctionName(object);
  ASSIGN_OR_RETURN(const BodyFields function, object.RequireObject("function"));
  RETURN_IF_ERROR(CheckFields(kChosenFunction, function));
  return ReadFunctionName(function);
}

// One of several calls. References within the parameters start at their $id.
std::string SchemaOfOne(const ToolChoice& choice, const std::vector<std::string>& parameters) {
  std::string options, definitions;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string comma = i == 0 ? "" : ",";
    options += StrCat(comma, R"({"type":"object","properties":{"name":{"const":")",
                      choice.functions[i].name, R"("},"arguments":{"$ref":"#/$defs/)", i,
                      R"("}},"required":["name","arguments"],"additionalProperties":false})");
    const std::string id = choice.functions[i].has_id ? "" : StrCat(R"("$id":")", i, "\"");
    const std::string_view rest = std::string_view(parameters[i]).substr(1);
    definitions += StrCat(comma, "\"", i, "\":{", id, id.empty() || rest == "}" ? "" : ",", rest);
  }
  return StrCat(R"({"anyOf":[)", options, R"(],"$defs":{)", definitions, "}}");
}

// The arguments alone are the text.
bool IsBare(const ToolChoice& choice) {
  return choice.functions.size() == 1 && !choice.allows_text;
}

std::string Task(const ToolChoice& choice, const std::string& descriptions) {
  const std::string call = CallText("...", "{...}");
  const std::string_view which =
      choice.functions.size() == 1 ? "this function" : "one of these functions";
  if (choice.allows_text) {
    return StrCat("You may call ", which, ":\n", descriptions,
                  "To call, answer with the call alone, as JSON: ", call,
                  "\nElse answer in words.");
  }
  return StrCat("Call ", which, ":\n", descriptions,
                IsBare(choice) ? "Answer with its arguments alone, as JSON."
                               : StrCat("Answer with the call alone, as JSON: ", call));
}

}  // namespace

absl::StatusOr<ToolChoice> ReadToolChoice(const BodyFields& fields, ToolDialect dialect,
                                          ConstraintField* constraint) {
  ASSIGN_OR_RETURN(std::vector<ToolChoice::Function> functions, ReadFunctions(fields, dialect));
  ASSIGN_OR_RETURN(const ChoiceWord choice, ReadWord(fields, dialect));
  const bool is_auto = choice.word == "auto";
  ToolChoice read{.dialect = dialect, .allows_text = is_auto};
  if (choice.word == "none" || (is_auto && functions.empty())) return read;
  if (functions.empty()) return FieldError("tool_choice", "is set, and there are no tools");
  if (choice.one == nullptr) {
    read.functions = std::move(functions);
  } else {
    ASSIGN_OR_RETURN(const std::string name, ReadChosenName(*choice.one, dialect));
    const auto found = std::ranges::find(functions, name, &ToolChoice::Function::name);
    if (found == functions.end()) {
      return FieldError(
          StrCat("tool_choice", FormOf(dialect).is_nested ? ".function" : "", ".name"),
          StrCat("is ", Quote(name), ", which is not in tools"));
    }
    read.functions = {std::move(*found)};
  }
  if (!constraint->name.empty()) {
    return FieldError(constraint->name, "and tool_choice both constrain the text; send one");
  }
  if (!GrammarCompiler::IsAvailable()) {
    return FieldError("tools",
                      "is set; this build cannot constrain the output, for it has no xgrammar");
  }
  constraint->name = read.functions.size() == 1 ? StrCat(FunctionField(read, read.functions[0]),
                                                         ".", FormOf(dialect).parameters)
                                                : "tools";
  return read;
}

absl::Status AskForCall(std::string_view body, const ToolChoice& choice,
                        v1::GenerateRequest* request) {
  if (!choice.MayCall()) return absl::OkStatus();
  const std::string tools = JsonAt(body, std::array<std::string, 1>{"tools"});
  // They are read once more for each function.
  if (tools.size() > kMaxGrammarBytes) {
    return FieldError("tools",
                      StrCat("has ", tools.size(), " bytes; it may have ", kMaxGrammarBytes));
  }
  const Form& form = FormOf(choice.dialect);
  std::string descriptions;
  std::vector<std::string> parameters;
  for (const ToolChoice::Function& function : choice.functions) {
    std::vector<std::string> path = {StrCat(function.position)};
    if (form.is_nested) path.emplace_back("function");
    const std::string description = JsonAt(tools, path);
    descriptions += description + "\n";
    parameters.push_back(
        function.has_parameters
            ? JsonAt(description, std::array<std::string, 1>{std::string(form.parameters)})
            : std::string(kNoParameters));
  }
  std::string schema = IsBare(choice) ? std::move(parameters[0]) : SchemaOfOne(choice, parameters);
  if (choice.allows_text) {
    request->set_json_schema_or_text(std::move(schema));
  } else {
    request->set_json_schema(std::move(schema));
  }

  if (request->chat().messages().empty()) return absl::OkStatus();  // an error, and told later
  const std::string task = Task(choice, descriptions);
  v1::ChatMessage& first = *request->mutable_chat()->mutable_messages(0);
  first.set_content(first.role() == "system" ? StrCat(first.content(), "\n\n", task)
                                             : StrCat(task, "\n\n", first.content()));
  return absl::OkStatus();
}

std::string CallText(std::string_view name, std::string_view arguments) {
  return StrCat("{\"name\": \"", name, "\", \"arguments\": ", arguments, "}");
}

TextOrCall::TextOrCall(const ToolChoice& choice) {
  if (!choice.MayCall()) return;
  has_frame_ = !IsBare(choice);
  if (!has_frame_) name_ = choice.functions[0].name;
  state_ = choice.allows_text ? State::kUnknown : has_frame_ ? State::kFrame : State::kArguments;
}

void TextOrCall::Add(const v1::Delta& delta) {
  rest_ += delta.text();
  if (state_ == State::kUnknown) FindStart();
  if (state_ == State::kFrame) FindName();
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) End(delta.finish_reason());
}

void TextOrCall::FindStart() {
  const size_t start = rest_.find_first_not_of(kSpaces);
  if (start != std::string::npos) state_ = rest_[start] == '{' ? State::kFrame : State::kText;
}

// {"name": "...", "arguments": with any white space: names need no escapes.
void TextOrCall::FindName() {
  constexpr std::string_view kKey = "\"arguments\"";
  for (size_t key = rest_.find(kKey); key != std::string::npos; key = rest_.find(kKey, key + 1)) {
    const size_t colon = rest_.find_first_not_of(kSpaces, key + kKey.size());
    if (colon == std::string::npos || rest_[colon] != ':') continue;  // a function of this name
    const size_t end = rest_.rfind('"', key - 1);
    const size_t begin = rest_.rfind('"', end - 1) + 1;
    name_ = rest_.substr(begin, end - begin);
    rest_.erase(0, colon + 1);
    state_ = State::kArguments;
    return;
  }
}

void TextOrCall::End(v1::FinishReason finish) {
  if (state_ != State::kArguments) {
    state_ = State::kText;  // it ended before the function's name
    return;
  }
  is_whole_ = finish == v1::FINISH_REASON_EOS || finish == v1::FINISH_REASON_STOP_TOKEN ||
              finish == v1::FINISH_REASON_COMPLETE;
}

std::string TextOrCall::TakeText() { return IsText() ? std::exchange(rest_, {}) : std::string(); }

std::string TextOrCall::TakeArguments() {
  if (!IsCall()) return {};
  if (!has_frame_) return std::exchange(rest_, {});
  if (!has_begun_) rest_.erase(0, rest_.find_first_not_of(kSpaces));
  has_begun_ |= !rest_.empty();
  rest_.erase(FindEnd());
  return std::exchange(rest_, {});
}

// A JSON value, which may also be cut: behind it comes the frame's end.
size_t TextOrCall::FindEnd() {
  for (size_t i = 0; i < rest_.size(); ++i) {
    const char c = rest_[i];
    has_ended_ |= depth_ == 0 && !is_in_string_ && (c == '}' || kSpaces.find(c) != kSpaces.npos);
    if (has_ended_) return i;
    if (is_in_string_) {
      is_in_string_ = c != '"' || is_escaped_;
      is_escaped_ = c == '\\' && !is_escaped_;
    } else if (c == '"') {
      is_in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      has_ended_ = --depth_ == 0;
    }
  }
  return rest_.size();
}

}  // namespace lssar
