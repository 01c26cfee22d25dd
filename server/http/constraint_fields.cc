#include "server/http/constraint_fields.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/grammar.h"
#include "server/config/limits.h"
#include "server/http/json_text.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

enum class Kind { kJsonObject, kJsonSchema, kRegex, kGrammar, kChoice };

struct Name {
  std::string_view field;
  Kind kind;
};
constexpr std::array kTopLevel = std::to_array<Name>({
    {"guided_json", Kind::kJsonSchema},
    {"guided_regex", Kind::kRegex},
    {"guided_grammar", Kind::kGrammar},
    {"guided_choice", Kind::kChoice},
    {"json_schema", Kind::kJsonSchema},
    {"regex", Kind::kRegex},
    {"grammar", Kind::kGrammar},
    {"ebnf", Kind::kGrammar},
});
constexpr std::array kStructuredOutputs = std::to_array<Name>({
    {"json", Kind::kJsonSchema},
    {"regex", Kind::kRegex},
    {"choice", Kind::kChoice},
    {"grammar", Kind::kGrammar},
    {"json_object", Kind::kJsonObject},
});

class ConstraintReader {
 public:
  explicit ConstraintReader(v1::GenerateRequest* request) : request_(*request) {}

  const ConstraintField& Field() const { return field_; }

  // `path`: of `value`. Errors  as of ReadConstraint
  absl::Status Set(Kind kind, std::vector<std::string> path, const std::string& name,
                   const Json& value) {
    if (!field_.name.empty()) {
      return FieldError(name, StrCat("and ", field_.name, " are both there; send one"));
    }
    if (!GrammarCompiler::IsAvailable()) {
      return FieldError(name,
                        "is set; this build cannot constrain the output, for it has no xgrammar");
    }
    field_.name = name;
    if (kind == Kind::kJsonObject) {
      ASSIGN_OR_RETURN(const bool is_object, ReadBool(name, value));
      if (is_object) {
        request_.set_json_object(true);
      } else {
        field_ = {};
      }
      return absl::OkStatus();
    }
    if (kind == Kind::kChoice) {
      ASSIGN_OR_RETURN(const auto texts, ReadStrings(name, value));
      request_.mutable_choice()->mutable_texts()->Assign(texts.begin(), texts.end());
      return absl::OkStatus();
    }
    if (kind == Kind::kJsonSchema && !value.is_string()) {
      if (!value.is_object() && !value.is_boolean()) {
        return FieldError(name, StrCat("is ", TypeName(value), "; it must be a JSON Schema"));
      }
      if (value.is_object()) field_.schema_path = std::move(path);
      request_.set_json_schema(value.dump());
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(std::string text, ReadString(name, value));
    if (kind == Kind::kJsonSchema) request_.set_json_schema(std::move(text));
    if (kind == Kind::kRegex) request_.set_regex(std::move(text));
    if (kind == Kind::kGrammar) request_.set_grammar(std::move(text));
    return absl::OkStatus();
  }

  absl::Status ReadResponseFormat(const Json& value) {
    ASSIGN_OR_RETURN(const BodyFields format, BodyFields::Of(value, "response_format"));
    ASSIGN_OR_RETURN(const std::string type, ReadType(format));
    if (type != "json_schema") {
      RETURN_IF_ERROR(CheckNames(format, {"type"}));
      return SetWithoutSchema(type, "response_format");
    }
    RETURN_IF_ERROR(CheckNames(format, {"type", "json_schema"}));
    ASSIGN_OR_RETURN(const BodyFields schema, format.RequireObject("json_schema"));
    RETURN_IF_ERROR(CheckNames(schema, {"name", "description", "schema", "strict"}));
    return SetSchema(schema, {"response_format", "json_schema", "schema"});
  }

  absl::Status ReadTextFormat(const Json& value) {
    ASSIGN_OR_RETURN(const BodyFields format, BodyFields::Of(value, "text.format"));
    ASSIGN_OR_RETURN(const std::string type, ReadType(format));
    if (type != "json_schema") {
      RETURN_IF_ERROR(CheckNames(format, {"type"}));
      return SetWithoutSchema(type, "text.format");
    }
    RETURN_IF_ERROR(CheckNames(format, {"type", "name", "description", "schema", "strict"}));
    return SetSchema(format, {"text", "format", "schema"});
  }

  absl::Status ReadStructuredOutputs(const Json& value) {
    ASSIGN_OR_RETURN(const BodyFields outputs, BodyFields::Of(value, "structured_outputs"));
    // Switches of vLLM's whose false is what happens here.
    for (const std::string_view name :
         {"disable_fallback", "disable_any_whitespace", "disable_additional_properties"}) {
      ASSIGN_OR_RETURN(const std::optional<bool> is_on, outputs.Bool(name));
      if (!is_on.value_or(false) || name == "disable_fallback") continue;
      return FieldError(outputs.Name(name),
                        "is true; white space is any within JSON here, and "
                        "additionalProperties says what it allows");
    }
    RETURN_IF_ERROR(CheckNames(
        outputs, {"json", "regex", "choice", "grammar", "json_object", "disable_fallback",
                  "disable_any_whitespace", "disable_additional_properties"}));
    for (const auto& [field, kind] : kStructuredOutputs) {
      const Json* one = outputs.Find(field);
      if (one == nullptr) continue;
      RETURN_IF_ERROR(
          Set(kind, {"structured_outputs", std::string(field)}, outputs.Name(field), *one));
    }
    return absl::OkStatus();
  }

 private:
  // "text", "json_object" or "json_schema".
  static absl::StatusOr<std::string> ReadType(const BodyFields& format) {
    ASSIGN_OR_RETURN(std::string type, format.RequireString("type"));
    if (type != "text" && type != "json_object" && type != "json_schema") {
      return FieldError(
          format.Name("type"),
          StrCat("is ", Quote(type), "; it must be \"text\", \"json_object\" or \"json_schema\""));
    }
    return type;
  }

  absl::Status SetWithoutSchema(std::string_view type, const std::string& name) {
    if (type == "text") return absl::OkStatus();
    return Set(Kind::kJsonObject, {}, name, Json(true));
  }

  // `object`: with name, description, schema and strict. `path`: of its schema.
  absl::Status SetSchema(const BodyFields& object, std::vector<std::string> path) {
    RETURN_IF_ERROR(object.String("name").status());
    RETURN_IF_ERROR(object.String("description").status());
    RETURN_IF_ERROR(object.Bool("strict").status());  // the schema is enforced in any case
    ASSIGN_OR_RETURN(const Json* const schema, object.Require("schema"));
    return Set(Kind::kJsonSchema, std::move(path), object.Name("schema"), *schema);
  }

  // An unknown name could mean another constraint.
  static absl::Status CheckNames(const BodyFields& object,
                                 std::initializer_list<std::string_view> names) {
    for (const auto& [name, value] : object.Object().items()) {
      if (value.is_null() || std::ranges::find(names, name) != names.end()) continue;
      return FieldError(object.Name(name), "is not known here; leave it out");
    }
    return absl::OkStatus();
  }

  v1::GenerateRequest& request_;
  ConstraintField field_;
};

}  // namespace

absl::StatusOr<ConstraintField> ReadConstraint(const BodyFields& fields,
                                               v1::GenerateRequest* request) {
  ConstraintReader reader(request);
  if (const Json* format = fields.Find("response_format")) {
    RETURN_IF_ERROR(reader.ReadResponseFormat(*format));
  }
  if (const Json* outputs = fields.Find("structured_outputs")) {
    RETURN_IF_ERROR(reader.ReadStructuredOutputs(*outputs));
  }
  for (const auto& [field, kind] : kTopLevel) {
    if (const Json* value = fields.Find(field)) {
      RETURN_IF_ERROR(reader.Set(kind, {std::string(field)}, std::string(field), *value));
    }
  }
  return reader.Field();
}

absl::StatusOr<ConstraintField> ReadTextFormat(const BodyFields& text,
                                               v1::GenerateRequest* request) {
  ConstraintReader reader(request);
  if (const Json* format = text.Find("format")) RETURN_IF_ERROR(reader.ReadTextFormat(*format));
  return reader.Field();
}

absl::Status CheckConstraintBytes(const ConstraintField& constraint,
                                  const v1::GenerateRequest& shared, size_t num_prompts) {
  const size_t num_bytes = shared.json_schema().size() + shared.regex().size() +
                           shared.grammar().size() + shared.choice().ByteSizeLong();
  if (num_bytes * num_prompts <= size_t(limits::kMaxMessageBytes)) return absl::OkStatus();
  return FieldError(constraint.name,
                    StrCat("has ", num_bytes, " bytes, and there are ", num_prompts,
                           " prompts; together they may have ", limits::kMaxMessageBytes));
}

void KeepSchemaOrder(std::string_view body, const ConstraintField& constraint,
                     std::vector<v1::GenerateRequest>* prompts) {
  if (constraint.schema_path.empty()) return;
  const std::string text = JsonAt(body, constraint.schema_path);
  for (v1::GenerateRequest& prompt : *prompts) prompt.set_json_schema(text);
}

}  // namespace lssar
