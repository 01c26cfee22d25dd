#include "clients/cli/score_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {
namespace {

// A request message may have 32 MiB; an item is never larger than its line.
constexpr size_t kMaxLineBytes = 31 << 20;

absl::Status BadField(int64_t line_number, absl::string_view field, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      StrCat("line ", line_number, ": \"", field, "\" must be ", wanted));
}

bool FillText(const nlohmann::json& json, v1::TextOrTokens* text) {
  if (json.is_string()) {
    text->set_text(json.get<std::string>());
    return true;
  }
  if (!json.is_array()) return false;
  auto* ids = text->mutable_tokens()->mutable_ids();
  for (const nlohmann::json& id : json) {
    if (!id.is_number_integer()) return false;
    const auto value = id.get<int64_t>();
    if (value < 0 || value > std::numeric_limits<int32_t>::max()) return false;
    ids->Add(int32_t(value));
  }
  return true;
}

absl::StatusOr<v1::ScoreItem> ParseLine(absl::string_view line, int64_t line_number) {
  constexpr absl::string_view kText = "a text or a list of token ids";
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
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
      for (const nlohmann::json& continuation : value) {
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

absl::StatusOr<ScoreFileReader> ScoreFileReader::Open(const std::string& path) {
  if (path == "-") return ScoreFileReader(&std::cin);
  auto file = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!file->is_open()) {
    return absl::NotFoundError(StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  ScoreFileReader reader(file.get());
  reader.file_ = std::move(file);
  return reader;
}

absl::StatusOr<std::optional<ScoreLine>> ScoreFileReader::Next() {
  std::string line;
  while (std::getline(*lines_, line)) {
    ++line_number_;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    ++num_items_;
    if (line.size() > kMaxLineBytes) {
      return absl::InvalidArgumentError(StrCat("line ", line_number_, ": ", line.size(),
                                               " bytes; a line may have ", kMaxLineBytes));
    }
    ScoreLine parsed{.item = {}, .line_number = line_number_, .error = {}};
    ASSIGN_OR_RETURN(parsed.item, ParseLine(line, line_number_));
    return parsed;
  }
  is_at_end_ = true;
  if (lines_->bad()) return absl::InternalError("cannot read the items");
  if (num_items_ == 0) return absl::InvalidArgumentError("no item to score: the file is empty");
  return std::nullopt;
}

absl::StatusOr<std::optional<ScoreLine>> ScoreFileReader::NextRow() {
  absl::StatusOr<std::optional<ScoreLine>> line = Next();
  // Only a line's own error leaves the reader at a line that it has not returned before.
  if (!absl::IsInvalidArgument(line.status()) || is_at_end_) return line;
  return ScoreLine{.item = {}, .line_number = line_number_, .error = line.status()};
}

absl::Status ScoreFileReader::SkipTo(int64_t line_number) {
  std::string line;
  while (line_number_ < line_number) {
    if (!std::getline(*lines_, line)) {
      return absl::OutOfRangeError(StrCat("the input has ", line_number_, " lines, the output has ",
                                          "line ", line_number, ": it is of another input"));
    }
    ++line_number_;
    ++num_items_;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> CountLines(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    return absl::NotFoundError(StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  int64_t num_lines = 0;
  for (std::string line; std::getline(file, line);) {
    num_lines += absl::StripAsciiWhitespace(line).empty() ? 0 : 1;
  }
  return num_lines;
}

absl::StatusOr<std::optional<int64_t>> CountScoreItems(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  ASSIGN_OR_RETURN(ScoreFileReader reader, ScoreFileReader::Open(path));
  for (int64_t num_items = 0;; ++num_items) {
    ASSIGN_OR_RETURN(const std::optional<ScoreLine> line, reader.Next());
    if (!line.has_value()) return num_items;
  }
}

}  // namespace lssar::cli
