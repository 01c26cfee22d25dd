// The names that the HTTP API has for fields of lssar.v1, for errors.
#ifndef LSSAR_SERVER_HTTP_FIELD_NAMES_H_
#define LSSAR_SERVER_HTTP_FIELD_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace lssar {

// What a path calls fields of lssar.v1 that have other names there.
struct FieldName {
  std::string_view v1;
  std::string http;
};
using FieldNames = std::vector<FieldName>;

// `field`: what the text, the token ids or the chat came from.
FieldNames PromptNames(const std::string& field);

// An error of parse_request.h in the names that a path has for the fields: "sampling.top_p is 2;
// ..." becomes "top_p is 2; ...". Where lssar.v1 has a TextOrTokens, a body has a string or a list.
absl::Status WithHttpNames(const absl::Status& status, const FieldNames& names);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_FIELD_NAMES_H_
