// Typed, bounded reads of a JSON object's fields. Every error names field, value and limit.
// Internal to models/: nlohmann's types stay out of the other headers.
#ifndef LSSAR_MODELS_JSON_FIELDS_H_
#define LSSAR_MODELS_JSON_FIELDS_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lssar {

// Cost    linear in the text; no recursion
// Errors  INVALID_ARGUMENT, starting with `source`: not JSON or not UTF-8 (names the byte), a name
//         twice in one object, more than 64 levels
//         RESOURCE_EXHAUSTED: no memory
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view source);

// Calls `visit` for each member of the object that `text` is, in order, and stores one member at a
// time: for objects of very many members.
// Errors  those of ParseJson; not an object; the first error of `visit`
absl::Status ForEachJsonMember(
    std::string_view text, std::string_view source,
    absl::FunctionRef<absl::Status(const std::string& name, const nlohmann::json& value)> visit);

// A value in a message, as the file has it: cut if it is long.
std::string QuoteJson(const nlohmann::json& value);

// A name of a file in a message: cut if it is long.
std::string ShortName(std::string_view name);

// Keeps the first error: read every field, then check status() once. A field that is absent or null
// takes the fallback; without a fallback it is an error.
class JsonFields {
 public:
  // `source` starts every message: a path, or a path and the object's name. It is an error if
  // `object` is not a JSON object.
  JsonFields(const nlohmann::json& object, std::string source);

  const absl::Status& status() const { return status_; }
  bool Has(std::string_view name) const { return Find(name) != nullptr; }

  int64_t Int(std::string_view name, int64_t min, int64_t max,
              std::optional<int64_t> fallback = std::nullopt);
  std::optional<int32_t> OptionalInt(std::string_view name, int32_t min, int32_t max);
  // In [min, max].
  double Number(std::string_view name, double min, double max,
                std::optional<double> fallback = std::nullopt);
  // In (0, max].
  double Positive(std::string_view name, double max, std::optional<double> fallback = std::nullopt);
  // The same as fp32. A number that would be 0 or subnormal there is an error.
  float PositiveFloat(std::string_view name, double max,
                      std::optional<double> fallback = std::nullopt);
  bool Bool(std::string_view name, bool fallback);
  std::string Text(std::string_view name, std::optional<std::string> fallback = std::nullopt);
  // The index of one of `choices`. Absent: 0.
  int Choice(std::string_view name, std::initializer_list<std::string_view> choices);
  // nullptr: absent or null.
  const nlohmann::json* Object(std::string_view name);
  const nlohmann::json* Array(std::string_view name);
  // An array of at most max_count texts of 1 to max_bytes bytes. Absent: none.
  std::vector<std::string> Texts(std::string_view name, size_t max_count, size_t max_bytes);

  // Fails if there is a field that is not in `known`.
  void RejectOthers(std::initializer_list<std::string_view> known);
  // Sets the error unless one is set. The message is "SOURCE: PROBLEM".
  void Fail(std::string_view problem);

 private:
  // nullptr: absent or null.
  const nlohmann::json* Find(std::string_view name) const;
  void FailType(std::string_view name, std::string_view wanted);
  void FailMissing(std::string_view name);

  const nlohmann::json& object_;
  std::string source_;
  absl::Status status_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_JSON_FIELDS_H_
