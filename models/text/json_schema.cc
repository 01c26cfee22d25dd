#include "models/text/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/json_builder.h"

namespace lssar {
namespace {

using Json = nlohmann::ordered_json;  // the order of properties is that of the text

constexpr size_t kMaxReasonBytes = 200;

// Nothing here says what a value is, but for the subschemas of $defs.
constexpr std::array<std::string_view, 18> kAnnotations = {
    "$anchor",         "$comment",         "$defs",    "$id",         "$schema",    "$vocabulary",
    "contentEncoding", "contentMediaType", "default",  "definitions", "deprecated", "description",
    "discriminator",   "example",          "examples", "readOnly",    "title",      "writeOnly"};
// Keywords that are enforced for one type, whatever the others are.
constexpr std::array<std::string_view, 5> kOfNumbers = {"multipleOf", "minimum", "maximum",
                                                        "exclusiveMinimum", "exclusiveMaximum"};
constexpr std::array<std::string_view, 4> kOfStrings = {"minLength", "maxLength", "pattern",
                                                        "format"};
constexpr std::array<std::string_view, 5> kOfArrays = {"items", "prefixItems", "minItems",
                                                       "maxItems", "unevaluatedItems"};
constexpr std::array<std::string_view, 8> kOfObjects = {
    "properties",    "required",      "patternProperties",    "propertyNames",
    "minProperties", "maxProperties", "additionalProperties", "unevaluatedProperties"};
// Standard keywords that are never enforced.
constexpr std::array<std::string_view, 16> kNotEnforced = {"$dynamicRef",
                                                           "$recursiveRef",
                                                           "additionalItems",
                                                           "contains",
                                                           "contentSchema",
                                                           "dependencies",
                                                           "dependentRequired",
                                                           "dependentSchemas",
                                                           "else",
                                                           "if",
                                                           "maxContains",
                                                           "minContains",
                                                           "not",
                                                           "then",
                                                           "uniqueItems",
                                                           "$dynamicAnchor"};
// A schema object has at most one of these, and beside it no other keyword that says what a value
// is: the first one decides alone.
constexpr std::array<std::string_view, 6> kAlone = {"$ref",  "const", "enum",
                                                    "anyOf", "oneOf", "allOf"};
constexpr std::array<std::string_view, 7> kTypes = {"string", "number", "integer", "boolean",
                                                    "null",   "array",  "object"};
constexpr std::array<std::string_view, 6> kCounts = {"minLength", "maxLength",     "minItems",
                                                     "maxItems",  "minProperties", "maxProperties"};

bool Has(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

absl::Status Rejected(std::string_view problem, std::string_view path) {
  return absl::InvalidArgumentError(
      Shorten(StrCat(problem, " (at ", Quote(path.empty() ? "#" : path), ")"), kMaxReasonBytes));
}

bool HasType(const Json& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
  }
  return value.is_number();
}

// Builds a schema in the order of its text.
class SchemaBuilder final : public JsonBuilder<Json> {
 public:
  SchemaBuilder() : JsonBuilder(size_t(kMaxSchemaDepth)) {}

  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return Fail("is not JSON");
  }

 private:
  bool OnValue(const Json& value) override {
    // xgrammar would read it as a float.
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(kMax)) {
      return Fail(StrCat("has the number ", value.dump(), "; an integer may be at most ", kMax));
    }
    if (++num_values_ <= kMaxSchemaValues) return true;
    return Fail(StrCat("has more than ", kMaxSchemaValues, " values; it may have so many"));
  }
  std::string DepthError() const override {
    return StrCat("has values within each other deeper than ", kMaxSchemaDepth,
                  "; it may have that depth");
  }
  std::string RepeatError(const std::string& name) const override {
    return StrCat("has the key ", Quote(name), " twice in one object");
  }

  int num_values_ = 0;
};

class SchemaReader {
 public:
  explicit SchemaReader(Json schema) : root_(std::move(schema)) {}

  absl::StatusOr<std::string> Read() {
    RETURN_IF_ERROR(ReadSchema(&root_, "#"));
    if (num_properties_ > kMaxSchemaProperties) {
      return absl::InvalidArgumentError(StrCat("has ", num_properties_,
                                               " properties, of all objects together; it may have ",
                                               kMaxSchemaProperties));
    }
    RETURN_IF_ERROR(CheckFinite());
    return root_.dump();
  }

 private:
  // A schema is changed before its subschemas are read: a change moves them.
  absl::Status ReadSchema(Json* schema, const std::string& path) {
    if (schema->is_boolean()) return absl::OkStatus();
    if (!schema->is_object()) return Rejected("is no schema: an object, true or false", path);
    schemas_.push_back(schema);
    // References within a schema that has an $id of its own are relative to it.
    const std::string outer = base_;
    const auto id = schema->find("$id");
    if (path != "#" && id != schema->end() && id->is_string() &&
        !id->get_ref<const std::string&>().starts_with('#')) {
      base_ = path;
    }
    std::string_view alone;
    bool has_types = false;  // of one type's keywords
    for (const auto& [name, value] : schema->items()) {
      if (Has(kAnnotations, name)) continue;
      if (name == "uniqueItems" && value == false) continue;
      if (Has(kNotEnforced, name)) {
        return Rejected(StrCat("has ", name, ", which is not enforced"), path);
      }
      if (Has(kAlone, name)) {
        if (!alone.empty()) {
          return Rejected(StrCat("has ", alone, " beside ", name, "; only one of them is enforced"),
                          path);
        }
        alone = name;
      }
      const bool is_of_type = Has(kOfNumbers, name) || Has(kOfStrings, name) ||
                              Has(kOfArrays, name) || Has(kOfObjects, name);
      // JSON Schema lets unknown keywords pass, so a misspelt one would enforce nothing.
      if (!is_of_type && !Has(kAlone, name) && name != "type" && !name.starts_with("x-")) {
        return Rejected(StrCat("has ", Quote(name), ", which is no keyword of JSON Schema"), path);
      }
      has_types |= is_of_type;
    }
    RETURN_IF_ERROR(alone.empty() ? ReadTyped(schema, has_types, path)
                                  : ReadAlone(schema, std::string(alone), has_types, path));
    for (const char* name : {"$defs", "definitions"}) {
      if (schema->contains(name)) RETURN_IF_ERROR(ReadMembers(schema, name, path));
    }
    base_ = outer;
    return absl::OkStatus();
  }

  // {NAME: {KEY: schema, ...}}
  absl::Status ReadMembers(Json* schema, const std::string& name, const std::string& path) {
    Json& members = (*schema)[name];
    if (!members.is_object()) return Rejected(StrCat("has ", name, ", which is no object"), path);
    for (auto& [key, value] : members.items()) {
      RETURN_IF_ERROR(ReadSchema(&value, StrCat(path, "/", name, "/", key)));
    }
    return absl::OkStatus();
  }

  // {NAME: [schema, ...]}
  absl::Status ReadList(Json* schema, const std::string& name, const std::string& path) {
    Json& list = (*schema)[name];
    if (!list.is_array() || list.empty()) {
      return Rejected(StrCat("has ", name, ", which is no list of schemas"), path);
    }
    for (size_t i = 0; i < list.size(); ++i) {
      RETURN_IF_ERROR(ReadSchema(&list[i], StrCat(path, "/", name, "/", i)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAlone(Json* schema, const std::string& name, bool has_types,
                         const std::string& path) {
    if (has_types) {
      return Rejected(StrCat("has ", name, " beside other keywords, which are not enforced then"),
                      path);
    }
    Json& value = (*schema)[name];
    if (name == "const" || name == "enum") {
      if (name == "enum" && (!value.is_array() || value.empty())) {
        return Rejected("has enum, which is no list of values", path);
      }
      const Json values = name == "enum" ? value : Json::array({value});
      for (const Json& each : values) RETURN_IF_ERROR(CheckType(*schema, each, name, path));
      schema->erase("type");
      return absl::OkStatus();
    }
    if (schema->contains("type")) {
      return Rejected(StrCat("has ", name, " beside type, which is not enforced then"), path);
    }
    if (name == "$ref") {
      if (!value.is_string()) return Rejected("has $ref, which is no string", path);
      value = FromRoot(value.get_ref<const std::string&>());
      return absl::OkStatus();  // the target is read later, or was before
    }
    if (name == "oneOf" && value.is_array() && AreExclusive(value)) {
      // Then it says what anyOf says.
      Json options = std::move(value);
      schema->erase("oneOf");
      (*schema)["anyOf"] = std::move(options);
      return ReadList(schema, "anyOf", path);
    }
    if (name == "allOf" && value.is_array() && value.size() > 1) {
      return Rejected("has allOf of several schemas, which is not enforced", path);
    }
    return ReadList(schema, name, path);
  }

  // No value fits two of the schemas: their types differ, or all require a property that has
  // another constant in each. xgrammar knows fewer of such lists.
  bool AreExclusive(const Json& options) {
    std::vector<const Json*> schemas;
    for (const Json& option : options) {
      const Json* schema = &option;
      for (int i = 0; i < kMaxSchemaDepth && schema->is_object() && schema->contains("$ref"); ++i) {
        if (!(*schema)["$ref"].is_string()) return false;
        const auto target = Target(FromRoot((*schema)["$ref"].get_ref<const std::string&>()), "");
        if (!target.ok()) return false;
        schema = *target;
      }
      if (!schema->is_object() || !schema->contains("type") || !(*schema)["type"].is_string()) {
        return false;
      }
      schemas.push_back(schema);
    }
    if (HaveOwnTypes(schemas)) return true;
    const Json& first = *schemas.front();
    if (!first.contains("properties") || !first["properties"].is_object()) return false;
    return std::ranges::any_of(first["properties"].items(), [&](const auto& property) {
      return HaveOwnConstants(schemas, property.key());
    });
  }

  static bool HaveOwnTypes(const std::vector<const Json*>& schemas) {
    std::set<std::string> types;
    for (const Json* schema : schemas) {
      std::string type = (*schema)["type"];
      if (type == "integer") type = "number";
      if (!types.insert(type).second) return false;
    }
    return true;
  }

  static bool HaveOwnConstants(const std::vector<const Json*>& schemas, const std::string& name) {
    std::set<std::string> constants;
    for (const Json* schema : schemas) {
      const bool is_object = (*schema)["type"] == "object" && schema->contains("properties") &&
                             schema->contains("required") && (*schema)["required"].is_array() &&
                             (*schema)["properties"].is_object();
      if (!is_object || !(*schema)["properties"].contains(name)) return false;
      const Json& required = (*schema)["required"];
      if (std::ranges::find(required, Json(name)) == required.end()) return false;
      const Json& value = (*schema)["properties"][name];
      if (!value.is_object() || !value.contains("const") || !value["const"].is_string()) {
        return false;
      }
      if (!constants.insert(value["const"].get<std::string>()).second) return false;
    }
    return true;
  }

  // The value of `const`, or one of `enum`, has the schema's type.
  absl::Status CheckType(const Json& schema, const Json& value, std::string_view name,
                         const std::string& path) {
    if (!schema.contains("type")) return absl::OkStatus();
    const Json& type = schema["type"];
    const Json types = type.is_array() ? type : Json::array({type});
    for (const Json& each : types) {
      if (each.is_string() && HasType(value, each.get_ref<const std::string&>())) {
        return absl::OkStatus();
      }
    }
    return Rejected(StrCat("has a value in ", name, " that is not of its type"), path);
  }

  absl::Status ReadTyped(Json* schema, bool has_types, const std::string& path) {
    std::vector<std::string> types;
    if (schema->contains("type")) {
      const Json& type = (*schema)["type"];
      const Json list = type.is_array() ? type : Json::array({type});
      for (const Json& each : list) {
        if (!each.is_string() || !Has(kTypes, each.get_ref<const std::string&>())) {
          return Rejected("has a type that JSON Schema does not know", path);
        }
        types.push_back(each.get<std::string>());
      }
      if (types.empty()) return Rejected("has an empty list of types", path);
    } else if (has_types) {
      // Without a type a value of another type fits whatever they say, so the type may be theirs.
      for (const auto& [name, value] : schema->items()) {
        const std::string_view type = Has(kOfObjects, name)   ? "object"
                                      : Has(kOfArrays, name)  ? "array"
                                      : Has(kOfStrings, name) ? "string"
                                      : Has(kOfNumbers, name) ? "number"
                                                              : "";
        if (!type.empty() && std::ranges::find(types, type) == types.end()) {
          types.emplace_back(type);
        }
      }
      (*schema)["type"] = types.size() == 1 ? Json(types[0]) : Json(types);
    }
    for (const std::string_view name : kCounts) {
      if (!schema->contains(std::string(name))) continue;
      RETURN_IF_ERROR(ReadCount(&(*schema)[std::string(name)], name, path));
    }
    const auto has = [&types](std::string_view type) {
      return std::ranges::find(types, type) != types.end();
    };
    if (has("array") && !HasAny(*schema, {"items", "prefixItems", "unevaluatedItems"})) {
      (*schema)["items"] = true;
    }
    if (has("object") && !HasAny(*schema, {"properties", "patternProperties", "propertyNames",
                                           "additionalProperties", "unevaluatedProperties"})) {
      (*schema)["additionalProperties"] = true;
    }
    if (has("number")) RETURN_IF_ERROR(CheckBounds(*schema, path));
    if (has("array")) RETURN_IF_ERROR(ReadArray(schema, path));
    if (has("object")) RETURN_IF_ERROR(ReadObject(schema, path));
    return absl::OkStatus();
  }

  static bool HasAny(const Json& schema, std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) { return schema.contains(name); });
  }

  // 2.0 is a count, too.
  absl::Status ReadCount(Json* value, std::string_view name, const std::string& path) {
    if (HasType(*value, "integer") && *value >= 0 && *value <= kMaxSchemaRepeats) {
      *value = value->get<int>();
      return absl::OkStatus();
    }
    return Rejected(StrCat("has ", name, " ", Shorten(value->dump(), 24), "; it must be in [0, ",
                           kMaxSchemaRepeats, "]"),
                    path);
  }

  // A number's bounds are floats to xgrammar.
  absl::Status CheckBounds(const Json& schema, const std::string& path) {
    constexpr int64_t kMaxExact = int64_t{1} << 53;
    for (const std::string_view name : kOfNumbers) {
      const auto bound = schema.find(std::string(name));
      if (bound == schema.end() || !bound->is_number_integer()) continue;
      if (*bound >= -kMaxExact && *bound <= kMaxExact) continue;
      return Rejected(StrCat("has ", name, " ", bound->dump(), "; of a number it must be in [",
                             -kMaxExact, ", ", kMaxExact, "]"),
                      path);
    }
    return absl::OkStatus();
  }

  absl::Status ReadArray(Json* schema, const std::string& path) {
    for (const char* name : {"items", "unevaluatedItems"}) {
      if (!schema->contains(name)) continue;
      if ((*schema)[name].is_array()) {
        return Rejected(StrCat("has a list as ", name, "; its name is prefixItems"), path);
      }
      RETURN_IF_ERROR(ReadSchema(&(*schema)[name], StrCat(path, "/", name)));
    }
    return schema->contains("prefixItems") ? ReadList(schema, "prefixItems", path)
                                           : absl::OkStatus();
  }

  absl::Status ReadObject(Json* schema, const std::string& path) {
    for (const char* name : {"properties", "patternProperties"}) {
      if (schema->contains(name)) RETURN_IF_ERROR(ReadMembers(schema, name, path));
    }
    for (const char* name : {"propertyNames", "additionalProperties", "unevaluatedProperties"}) {
      if (!schema->contains(name)) continue;
      RETURN_IF_ERROR(ReadSchema(&(*schema)[name], StrCat(path, "/", name)));
    }
    const auto size = [schema](const char* name) {
      return schema->contains(name) ? (*schema)[name].size() : size_t{0};
    };
    const bool has_properties = size("properties") > 0;
    const bool has_patterns = size("patternProperties") > 0;
    const bool has_names = schema->contains("propertyNames");
    const auto allows_others = [schema](const char* name) {
      return schema->contains(name) && (*schema)[name] != false;
    };
    const bool names_are_open = has_patterns || has_names ||
                                allows_others("additionalProperties") ||
                                allows_others("unevaluatedProperties");
    if (has_properties && (has_patterns || has_names)) {
      return Rejected(StrCat("has ", has_patterns ? "patternProperties" : "propertyNames",
                             " beside properties; they are not enforced together"),
                      path);
    }
    if (has_patterns && (has_names || size("patternProperties") > 1)) {
      return Rejected(
          "has patternProperties of several patterns, or with propertyNames; they are "
          "not enforced together",
          path);
    }
    std::unordered_set<std::string_view> required;
    if (schema->contains("required")) {
      std::unordered_set<std::string_view> named;
      if (has_properties) {
        for (const auto& [name, value] : (*schema)["properties"].get_ref<const Json::object_t&>()) {
          named.insert(name);
        }
      }
      for (const Json& name : (*schema)["required"]) {
        if (!name.is_string()) return Rejected("has required, which is no list of names", path);
        required.insert(name.get_ref<const std::string&>());
        if (named.contains(name.get_ref<const std::string&>())) continue;
        return Rejected(StrCat("requires ", Quote(name.get_ref<const std::string&>()),
                               ", which properties does not name"),
                        path);
      }
    }
    const int num_properties = int(size("properties"));
    const int num_optional = num_properties - int(required.size());
    if (num_optional > kMaxOptionalProperties) {
      return Rejected(
          StrCat("has an object of ", num_optional,
                 " properties that are not required; it may have ", kMaxOptionalProperties),
          path);
    }
    if (schema->contains("maxProperties") || schema->value("minProperties", 0) > 0) {
      num_counted_ += num_optional;
    }
    if (num_counted_ > kMaxCountedProperties) {
      return Rejected(
          StrCat("has minProperties or maxProperties over ", num_counted_,
                 " properties that are not required; it may have ", kMaxCountedProperties),
          path);
    }
    num_properties_ += num_properties;
    // A name may come twice, and counts once.
    if (names_are_open && schema->contains("minProperties") && (*schema)["minProperties"] > 1) {
      return Rejected("has minProperties above 1 where names are open; it is not enforced", path);
    }
    return absl::OkStatus();
  }

  // A reference from where base_ is, as one from the root.
  std::string FromRoot(const std::string& uri) const {
    return uri.starts_with('#') ? StrCat(base_, std::string_view(uri).substr(1)) : uri;
  }

  // What a $ref names. Errors  INVALID_ARGUMENT: nothing in this schema
  absl::StatusOr<const Json*> Target(std::string_view uri, const std::string& path) {
    const absl::Status missing =
        Rejected(StrCat("has $ref ", Quote(uri), ", which is not in this schema"), path);
    if (!uri.starts_with('#') || (uri.size() > 1 && uri[1] != '/')) return missing;
    const Json* at = &root_;
    for (std::string_view rest = uri.substr(1); !rest.empty();) {
      rest.remove_prefix(1);
      const std::string_view key = rest.substr(0, rest.find('/'));
      rest.remove_prefix(key.size());
      const auto found = at->is_object() ? at->find(std::string(key)) : at->end();
      if (found == at->end()) return missing;
      at = &*found;
    }
    return at;
  }

  // The same once nothing moves any more, found once: keys are searched in their order. Null: none.
  const Json* Resolved(const std::string& uri) {
    const auto [at, is_new] = targets_.try_emplace(uri, nullptr);
    if (!is_new) return at->second;
    const auto target = Target(uri, "");
    if (target.ok()) at->second = *target;
    return at->second;
  }

  // Whether a finite value fits, as far as `finite_` is known.
  bool IsFinite(const Json& schema) {
    if (!schema.is_object()) return schema != false;
    const auto known = finite_.find(&schema);
    return known != finite_.end() && known->second;
  }

  bool FindFinite(const Json& schema) {
    const auto all = [this](const Json& list) {
      return std::ranges::all_of(list, [this](const Json& each) { return IsFinite(each); });
    };
    if (schema.contains("$ref")) {
      const Json* target = Resolved(schema["$ref"].get_ref<const std::string&>());
      return target != nullptr && IsFinite(*target);
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      if (!schema.contains(name)) continue;
      return std::ranges::any_of(schema[name], [this](const Json& each) { return IsFinite(each); });
    }
    if (schema.contains("allOf")) return all(schema["allOf"]);
    const bool is_structure =
        schema.contains("type") && (schema["type"] == "object" || schema["type"] == "array");
    if (!is_structure) return true;
    if (schema["type"] == "array") {
      const size_t num_prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
      if (num_prefix > 0 && !all(schema["prefixItems"])) return false;
      const bool needs_items = schema.contains("minItems") && schema["minItems"] > num_prefix;
      return !needs_items || !schema.contains("items") || IsFinite(schema["items"]);
    }
    if (!schema.contains("required")) return true;
    std::unordered_set<std::string_view> required;
    for (const Json& name : schema["required"]) required.insert(name.get_ref<const std::string&>());
    if (required.empty()) return true;
    const auto& properties = schema["properties"].get_ref<const Json::object_t&>();
    return std::ranges::all_of(properties, [&](const auto& property) {
      return !required.contains(property.first) || IsFinite(property.second);
    });
  }

  // Every schema of a value that must be there has a finite one: the least fixed point.
  absl::Status CheckFinite() {
    bool changed = true;
    for (int round = 0; changed; ++round) {
      changed = false;
      // Children come after their parents, references anywhere.
      for (auto schema = schemas_.rbegin(); schema != schemas_.rend(); ++schema) {
        bool& is_finite = finite_[*schema];
        if (is_finite || !FindFinite(**schema)) continue;
        is_finite = changed = true;
      }
      if (round == kMaxRounds) {
        return absl::InvalidArgumentError("has $ref that lead to each other in too long a row");
      }
    }
    for (const Json* schema : schemas_) {
      if (!schema->contains("$ref")) continue;
      const std::string& uri = (*schema)["$ref"].get_ref<const std::string&>();
      const Json* target = Resolved(uri);
      if (target == nullptr) return Target(uri, "").status();
      if (target->is_boolean() || finite_.contains(target)) continue;
      return Rejected(StrCat("has $ref ", Quote(uri), ", where no schema is"), "");
    }
    if (IsFinite(root_)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "is fitted by no finite value: false, or a schema that requires itself");
  }
  static constexpr int kMaxRounds = 100;

  Json root_;
  std::string base_ = "#";            // where references of the schema that is read start
  std::vector<const Json*> schemas_;  // objects, parents first
  int num_properties_ = 0;            // of all objects
  int num_counted_ = 0;               // that are not required, of objects with a count of them
  std::unordered_map<const Json*, bool> finite_;
  std::unordered_map<std::string, const Json*> targets_;  // of references
};

}  // namespace

absl::StatusOr<std::string> PrepareJsonSchema(std::string_view schema) {
  SchemaBuilder builder;
  if (!builder.Parse(schema)) return absl::InvalidArgumentError(builder.Error());
  return SchemaReader(std::move(builder.Root())).Read();
}

}  // namespace lssar
