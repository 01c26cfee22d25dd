// The fields of a body that constrain its text: OpenAI's response_format and text.format, vLLM's
// structured_outputs and guided_*, SGLang's json_schema, regex and ebnf, llama.cpp's json_schema
// and grammar.
#ifndef LSSAR_SERVER_HTTP_CONSTRAINT_FIELDS_H_
#define LSSAR_SERVER_HTTP_CONSTRAINT_FIELDS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "server/http/body_fields.h"

namespace lssar {

// What a constraint came from.
struct ConstraintField {
  std::string name = {};  // "response_format.json_schema.schema"; empty: there is none
  // The keys of the body that lead to a schema that is an object; empty: it is not one.
  std::vector<std::string> schema_path = {};
};

// Sets the constraint of `request`.
// Errors  INVALID_ARGUMENT: of the wrong type, not known or not supported, or two constraints;
//         the build cannot constrain the output
absl::StatusOr<ConstraintField> ReadConstraint(const BodyFields& fields,
                                               v1::GenerateRequest* request);

// The same of `text` of /v1/responses, whose field `format` is a response_format with the fields of
// json_schema beside its type.
absl::StatusOr<ConstraintField> ReadTextFormat(const BodyFields& text,
                                               v1::GenerateRequest* request);

// Each prompt gets a copy of the constraint of `shared`.
// Errors  INVALID_ARGUMENT: the copies are larger than a message may be
absl::Status CheckConstraintBytes(const ConstraintField& constraint,
                                  const v1::GenerateRequest& shared, size_t num_prompts);

// JSON objects are read without the order of their keys, but the order of a schema's properties is
// that of the output. Gives each of `prompts` the schema in the order that it has in `body`.
// Requires  `body` was read by ParseJson
void KeepSchemaOrder(std::string_view body, const ConstraintField& constraint,
                     std::vector<v1::GenerateRequest>* prompts);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_CONSTRAINT_FIELDS_H_
