// What of JSON Schema a constraint enforces. A schema that says more is refused, by keyword.
#ifndef LSSAR_MODELS_TEXT_JSON_SCHEMA_H_
#define LSSAR_MODELS_TEXT_JSON_SCHEMA_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lssar {

inline constexpr int kMaxSchemaDepth = 64;      // objects and lists within each other
inline constexpr int kMaxSchemaValues = 20000;  // values, at any depth
// Properties in all objects together, and those in one object that are not required: any of these
// may follow any earlier one, so their cost grows with the square of their number. What has so many
// compiles within about 2 s (docs/decisions/models.md).
inline constexpr int kMaxSchemaProperties = 3000;
inline constexpr int kMaxOptionalProperties = 500;
// Properties that are not required, of all objects with minProperties or maxProperties: their cost
// grows with the cube of their number.
inline constexpr int kMaxCountedProperties = 100;
inline constexpr int kMaxSchemaRepeats = 10000;  // minItems, maxLength and the like

// Returns `schema` as the compiler reads it: a value that fits the result fits the schema. What the
// schema leaves open is narrower there: objects have the properties that it names, in its order,
// and others only where additionalProperties allows them or where it names none.
// Errors  INVALID_ARGUMENT: not JSON, too deep or too large, a keyword that is not enforced, or no
//         finite value fits. The message is about the schema: "has uniqueItems at #/properties/a;
//         it is not enforced"
absl::StatusOr<std::string> PrepareJsonSchema(std::string_view schema);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_JSON_SCHEMA_H_
