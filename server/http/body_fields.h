// Fields of a request's JSON object, each read with a check of its type. Errors are FieldErrors,
// whose field becomes `param` of the reply.
#ifndef LSSAR_SERVER_HTTP_BODY_FIELDS_H_
#define LSSAR_SERVER_HTTP_BODY_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/field_error.h"
#include "base/str_cat.h"

namespace lssar {

// "a string", "a list": for errors.
std::string_view TypeName(const nlohmann::json& value);

// Values as fields. `field`: their name in errors.
// Errors  INVALID_ARGUMENT: another type, or out of the type's range
absl::StatusOr<int64_t> ReadInt(const std::string& field, const nlohmann::json& value);
absl::StatusOr<int32_t> ReadInt32(const std::string& field, const nlohmann::json& value);
absl::StatusOr<double> ReadNumber(const std::string& field, const nlohmann::json& value);
absl::StatusOr<bool> ReadBool(const std::string& field, const nlohmann::json& value);
absl::StatusOr<std::string> ReadString(const std::string& field, const nlohmann::json& value);
// int32s.
absl::StatusOr<std::vector<int32_t>> ReadIds(const std::string& field, const nlohmann::json& value);
absl::StatusOr<std::vector<std::string>> ReadStrings(const std::string& field,
                                                     const nlohmann::json& value);

// OpenAI's metadata: 16 strings of up to 512 characters under names of up to 64.
absl::Status CheckMetadata(const nlohmann::json& metadata);

// One object. A field that is null reads as a field that is not there.
class BodyFields {
 public:
  // `value` outlives this. `name`: of the object, in errors; empty: the body itself.
  // Errors  INVALID_ARGUMENT: not an object
  static absl::StatusOr<BodyFields> Of(const nlohmann::json& value, std::string name = "");

  const nlohmann::json& Object() const { return *value_; }
  // Null: it is not there.
  const nlohmann::json* Find(std::string_view field) const;
  // The name of `field` in errors.
  std::string Name(std::string_view field) const;

  absl::StatusOr<std::optional<int64_t>> Int(std::string_view field) const;
  absl::StatusOr<std::optional<int32_t>> Int32(std::string_view field) const;
  absl::StatusOr<std::optional<double>> Number(std::string_view field) const;
  absl::StatusOr<std::optional<bool>> Bool(std::string_view field) const;
  absl::StatusOr<std::optional<std::string>> String(std::string_view field) const;
  // Fields that must be there: any, a string, an object.
  absl::StatusOr<const nlohmann::json*> Require(std::string_view field) const;
  absl::StatusOr<std::string> RequireString(std::string_view field) const;
  absl::StatusOr<BodyFields> RequireObject(std::string_view field) const;
  // Null: it is not there. `of`: "numbers", for errors; the elements are not read.
  absl::StatusOr<const nlohmann::json*> List(std::string_view field, std::string_view of) const;

 private:
  BodyFields(const nlohmann::json& value, std::string name)
      : value_(&value), name_(std::move(name)) {}

  const nlohmann::json* value_;
  std::string name_;
};

// Gives each element of a list, as `read` reads it, to `append`. Only an error has a name.
template <typename Read, typename Append>
absl::Status ReadElements(const std::string& field, const nlohmann::json& list, const Read& read,
                          const Append& append) {
  for (size_t i = 0; i < list.size(); ++i) {
    const auto element = read({}, list[i]);
    if (!element.ok()) return read(StrCat(field, "[", i, "]"), list[i]).status();
    append(*element);
  }
  return absl::OkStatus();
}

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_BODY_FIELDS_H_
