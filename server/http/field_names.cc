#include "server/http/field_names.h"

#include "base/field_error.h"

namespace lssar {

FieldNames PromptNames(const std::string& field) {
  return {{"chat.add_generation_prompt", "add_generation_prompt"},
          {"chat.messages", field},
          {"chat", field},
          {"prompt", field},
          {"tokens.ids", field},
          {"text", field}};
}

absl::Status WithHttpNames(const absl::Status& status, const FieldNames& names) {
  const FieldProblem field = FieldProblemOf(status);
  if (field.path.empty()) return status;
  std::string path = field.path;
  constexpr std::string_view kSampling = "sampling.", kIds = ".tokens.ids", kText = ".text";
  if (path.starts_with(kSampling)) path.erase(0, kSampling.size());
  for (const auto& [v1, http] : names) {
    if (!path.starts_with(v1)) continue;
    const std::string rest = path.substr(v1.size());
    if (!rest.empty() && rest[0] != '.' && rest[0] != '[') continue;  // a longer name
    path = http + rest;
    break;
  }
  if (const size_t ids = path.find(kIds); ids != std::string::npos) path.erase(ids, kIds.size());
  if (path.ends_with(kText)) path.resize(path.size() - kText.size());
  return WithFieldPath(status, path);
}

}  // namespace lssar
