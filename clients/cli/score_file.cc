#include "clients/cli/score_file.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "kernels/str_cat.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {
namespace {

using Json = nlohmann::json;

absl::Status BadField(int line_number, absl::string_view field, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      StrCat("line ", line_number, ": \"", field, "\" must be ", wanted));
}

bool FillText(const Json& json, v1::ScoreText* text) {
  if (json.is_string()) {
    text->set_text(json.get<std::string>());
    return true;
  }
  if (!json.is_array()) return false;
  auto* ids = text->mutable_tokens()->mutable_ids();
  for (const Json& id : json) {
    if (!id.is_number_integer()) return false;
    const auto value = id.get<int64_t>();
    if (value < 0 || value > std::numeric_limits<int32_t>::max()) return false;
    ids->Add(static_cast<int32_t>(value));
  }
  return true;
}

absl::StatusOr<v1::ScoreItem> ParseLine(absl::string_view line, int line_number) {
  constexpr absl::string_view kText = "a text or a list of token ids";
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(StrCat(
        "line ", line_number, ": not a JSON object {\"context\": ..., \"continuations\": [...]}"));
  }
  v1::ScoreItem item;
  for (const auto& [field, value] : json.items()) {
    if (field == "context") {
      if (!FillText(value, item.mutable_context())) return BadField(line_number, field, kText);
    } else if (field == "continuations") {
      if (!value.is_array()) return BadField(line_number, field, "a list");
      for (const Json& continuation : value) {
        if (!FillText(continuation, item.add_continuations())) {
          return BadField(line_number, field, StrCat("a list, each entry ", kText));
        }
      }
    } else {
      return BadField(line_number, field, "left out: only context and continuations are known");
    }
  }
  if (item.continuations().empty()) {
    return BadField(line_number, "continuations", "a list of one or more");
  }
  return item;
}

}  // namespace

absl::StatusOr<std::vector<v1::ScoreItem>> ParseScoreLines(absl::string_view lines) {
  std::vector<v1::ScoreItem> items;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<v1::ScoreItem> item = ParseLine(line, line_number);
    if (!item.ok()) return item.status();
    items.push_back(*std::move(item));
  }
  if (items.empty()) return absl::InvalidArgumentError("no item to score: the file is empty");
  return items;
}

}  // namespace lssar::cli
