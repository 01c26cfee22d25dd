#include "server/http/tool_fields.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/http/tool_calls.h"

namespace lssar {

absl::Status TypeError(const BodyFields& fields, std::string_view type, std::string_view right) {
  return FieldError(fields.Name("type"),
                    StrCat("is ", Quote(type), "; it must be \"", right, "\""));
}

absl::Status CheckType(const BodyFields& fields, std::string_view right) {
  ASSIGN_OR_RETURN(const std::string type, fields.RequireString("type"));
  return type == right ? absl::OkStatus() : TypeError(fields, type, right);
}

absl::StatusOr<std::string> ReadFunctionName(const BodyFields& function) {
  ASSIGN_OR_RETURN(std::string name, function.RequireString("name"));
  const bool is_valid = !name.empty() && name.size() <= kMaxFunctionNameBytes &&
                        std::ranges::all_of(name, [](char c) {
                          return absl::ascii_isalnum(uint8_t(c)) || c == '_' || c == '-';
                        });
  if (is_valid) return name;
  return FieldError(function.Name("name"),
                    StrCat("is ", Quote(name), "; it must have 1 to ", kMaxFunctionNameBytes,
                           " letters, digits, \"_\" or \"-\""));
}

}  // namespace lssar
