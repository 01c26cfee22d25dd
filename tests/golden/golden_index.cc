#include <utility>

#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/json_fields.h"
#include "tests/golden/golden_case.h"

namespace lssar {
namespace {

// Far above today's cases, and below what a typing error gives.
constexpr int kMaxCount = 1 << 24;

GoldenCase ReadCase(JsonFields* fields) {
  GoldenCase c;
  c.name = fields->Text("name");
  if (c.name.find('/') != std::string::npos) fields->Fail("name must not contain a /");
  c.is_model = fields->Bool("model", false);
  if (c.is_model) return c;
  c.first = int(fields->Int("first", 0, kMaxCount));
  c.num_heads = int(fields->Int("heads", 1, kMaxCount));
  c.num_rows = int(fields->Int("rows", 1, kMaxCount));
  c.num_keys = int(fields->Int("keys", 1, kMaxCount));
  c.head_dim = int(fields->Int("dim", 1, kMaxCount));
  c.kind = fields->Text("kind");
  c.p = fields->Number("p", 0, 1e6, c.p);
  c.phi = fields->Text("phi", "");
  if (c.num_keys < c.first + c.num_rows) {
    fields->Fail(
        StrCat("keys is ", c.num_keys, ", must be at least first + rows, ", c.first + c.num_rows));
  }
  return c;
}

}  // namespace

absl::StatusOr<std::vector<GoldenCase>> ReadGoldenIndex(const std::string& directory) {
  const std::string path = directory + "/index.json";
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  ASSIGN_OR_RETURN(const nlohmann::json index, ParseJson(text, path));
  if (!index.is_array()) {
    return absl::InvalidArgumentError(path + ": must be an array of cases");
  }
  std::vector<GoldenCase> cases;
  for (size_t i = 0; i < index.size(); ++i) {
    JsonFields fields(index[i], StrCat(path, ": case ", i));
    GoldenCase c = ReadCase(&fields);
    RETURN_IF_ERROR(fields.status());
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace lssar
