// A chat template's text -> its nodes (the subset of Jinja that models/README.md lists).
#ifndef LSSAR_MODELS_TEMPLATE_PARSER_H_
#define LSSAR_MODELS_TEMPLATE_PARSER_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/template_ast.h"

namespace lssar {

// Errors  INVALID_ARGUMENT: outside the subset; "line:column: what was found".
absl::StatusOr<std::vector<TemplateNode>> ParseTemplate(std::string_view source);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEMPLATE_PARSER_H_
