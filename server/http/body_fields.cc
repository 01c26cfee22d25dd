#include "server/http/body_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

absl::Status WrongType(const std::string& field, const Json& value, std::string_view wanted) {
  return FieldError(field, StrCat("is ", TypeName(value), "; it must be ", wanted));
}

// `read`: (field, value) -> StatusOr<T>.
template <typename T, typename Read>
absl::StatusOr<std::optional<T>> ReadOptional(const BodyFields& fields, std::string_view field,
                                              const Read& read) {
  const Json* value = fields.Find(field);
  if (value == nullptr) return std::optional<T>();
  ASSIGN_OR_RETURN(T result, read(fields.Name(field), *value));
  return std::optional<T>(std::move(result));
}

// By JSON Schema's rule 1452.0 is an integer, and some languages have no other numbers. Nullopt: no
// token can have this id.
std::optional<int32_t> ReadId(const Json& value) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(number >= 0 && number <= kMax) || std::trunc(number) != number) return std::nullopt;
    return int32_t(number);
  }
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMax) {
    return std::nullopt;
  }
  return value.get<int32_t>();
}

}  // namespace

std::string_view TypeName(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "a list";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "a boolean";
    default: return "a number";
  }
}

absl::StatusOr<int64_t> ReadInt(const std::string& field, const Json& value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: beyond it a float may stand for another
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max())) {
    return FieldError(field, StrCat("is ", value.get<uint64_t>(), "; it must be a 64-bit integer"));
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return WrongType(field, value, "an integer");
  const double number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) > kExact) {
    return FieldError(field, StrCat("is ", number, "; it must be an integer"));
  }
  return int64_t(number);
}

absl::StatusOr<int32_t> ReadInt32(const std::string& field, const Json& value) {
  ASSIGN_OR_RETURN(const int64_t number, ReadInt(field, value));
  if (std::in_range<int32_t>(number)) return int32_t(number);
  return FieldError(field, StrCat("is ", number, "; it must be a 32-bit integer"));
}

absl::StatusOr<double> ReadNumber(const std::string& field, const Json& value) {
  if (!value.is_number()) return WrongType(field, value, "a number");
  return value.get<double>();
}

absl::StatusOr<bool> ReadBool(const std::string& field, const Json& value) {
  if (!value.is_boolean()) return WrongType(field, value, "true or false");
  return value.get<bool>();
}

absl::StatusOr<std::string> ReadString(const std::string& field, const Json& value) {
  if (!value.is_string()) return WrongType(field, value, "a string");
  return value.get<std::string>();
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const std::string& field, const Json& value) {
  if (!value.is_array()) return WrongType(field, value, "a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& element : value) {
    const std::optional<int32_t> id = ReadId(element);
    if (!id) {
      const std::string name = StrCat(field, "[", ids.size(), "]");
      if (!element.is_number()) return WrongType(name, element, "a token id");
      return FieldError(name, StrCat("is ", element.dump(), "; it must be a token id"));
    }
    ids.push_back(*id);
  }
  return ids;
}

absl::StatusOr<std::vector<std::string>> ReadStrings(const std::string& field, const Json& value) {
  if (!value.is_array()) return WrongType(field, value, "a list of strings");
  std::vector<std::string> strings;
  for (size_t i = 0; i < value.size(); ++i) {
    ASSIGN_OR_RETURN(std::string text, ReadString(StrCat(field, "[", i, "]"), value[i]));
    strings.push_back(std::move(text));
  }
  return strings;
}

absl::StatusOr<BodyFields> BodyFields::Of(const Json& value, std::string name) {
  if (value.is_object()) return BodyFields(value, std::move(name));
  if (name.empty()) {
    return absl::InvalidArgumentError(
        StrCat("the body is ", TypeName(value), "; it must be an object"));
  }
  return WrongType(name, value, "an object");
}

const Json* BodyFields::Find(std::string_view field) const {
  const auto found = value_->find(std::string(field));
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

std::string BodyFields::Name(std::string_view field) const {
  const std::string name = Shorten(field, kMaxQuotedBytes);
  return name_.empty() ? name : StrCat(name_, ".", name);
}

absl::StatusOr<std::optional<int64_t>> BodyFields::Int(std::string_view field) const {
  return ReadOptional<int64_t>(*this, field, ReadInt);
}

absl::StatusOr<std::optional<int32_t>> BodyFields::Int32(std::string_view field) const {
  return ReadOptional<int32_t>(*this, field, ReadInt32);
}

absl::StatusOr<std::optional<double>> BodyFields::Number(std::string_view field) const {
  return ReadOptional<double>(*this, field, ReadNumber);
}

absl::StatusOr<std::optional<bool>> BodyFields::Bool(std::string_view field) const {
  return ReadOptional<bool>(*this, field, ReadBool);
}

absl::StatusOr<std::optional<std::string>> BodyFields::String(std::string_view field) const {
  return ReadOptional<std::string>(*this, field, ReadString);
}

absl::StatusOr<const nlohmann::json*> BodyFields::Require(std::string_view field) const {
  const nlohmann::json* const value = Find(field);
  if (value == nullptr) return FieldError(Name(field), "is missing");
  return value;
}

absl::StatusOr<std::string> BodyFields::RequireString(std::string_view field) const {
  ASSIGN_OR_RETURN(const nlohmann::json* const value, Require(field));
  return ReadString(Name(field), *value);
}

absl::StatusOr<BodyFields> BodyFields::RequireObject(std::string_view field) const {
  ASSIGN_OR_RETURN(const nlohmann::json* const value, Require(field));
  return Of(*value, Name(field));
}

absl::StatusOr<const Json*> BodyFields::List(std::string_view field, std::string_view of) const {
  const Json* const value = Find(field);
  if (value == nullptr || value->is_array()) return value;
  return FieldError(Name(field), StrCat("is ", TypeName(*value), "; it must be a list of ", of));
}

absl::Status CheckMetadata(const Json& metadata) {
  constexpr size_t kMaxPairs = 16;
  constexpr int64_t kMaxKeyCharacters = 64, kMaxValueCharacters = 512;
  RETURN_IF_ERROR(BodyFields::Of(metadata, "metadata").status());
  if (metadata.size() > kMaxPairs) {
    return FieldError("metadata",
                      StrCat("has ", metadata.size(), " fields; it may have ", kMaxPairs));
  }
  for (const auto& [key, value] : metadata.items()) {
    if (NumCharacters(key) > kMaxKeyCharacters || !value.is_string() ||
        NumCharacters(value.get_ref<const std::string&>()) > kMaxValueCharacters) {
      return FieldError("metadata", StrCat("has the field ", Quote(key), "; a name has at most ",
                                           kMaxKeyCharacters, " characters, and a value is a ",
                                           "string of at most ", kMaxValueCharacters));
    }
  }
  return absl::OkStatus();
}

}  // namespace lssar
