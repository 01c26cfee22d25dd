// What the fields of tools, and of calls in messages, have in common.
#ifndef LSSAR_SERVER_HTTP_TOOL_FIELDS_H_
#define LSSAR_SERVER_HTTP_TOOL_FIELDS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http/body_fields.h"

namespace lssar {

// The error of a field `type` that is not `right`.
absl::Status TypeError(const BodyFields& fields, std::string_view type, std::string_view right);
// `type` is there, and is `right`.
absl::Status CheckType(const BodyFields& fields, std::string_view right);
// The field `name` of a function.
absl::StatusOr<std::string> ReadFunctionName(const BodyFields& function);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_TOOL_FIELDS_H_
