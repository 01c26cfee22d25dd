// Reads items to score from JSON lines.
#ifndef LSSAR_CLIENTS_CLI_SCORE_FILE_H_
#define LSSAR_CLIENTS_CLI_SCORE_FILE_H_

#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

struct ScoreLine {
  v1::ScoreItem item;
  int64_t line_number = 0;  // from 1; 0: not from a file
  absl::Status error;       // of NextRow: why the line is no item
};

// Reads one item at a time, so that a file may be larger than the memory. Each line is
// {"context": C, "continuations": [C, ...]}, each C a text or a list of token ids; "context" may be
// missing or "". Empty lines are skipped.
class ScoreFileReader {
 public:
  // `path`: "-" is standard input.
  // Errors  NOT_FOUND: the file cannot be opened
  static absl::StatusOr<ScoreFileReader> Open(const std::string& path);

  // `lines` must outlive the reader.
  explicit ScoreFileReader(std::istream* lines) : lines_(lines) {}

  // The next item; nullopt: the end.
  // Errors  INVALID_ARGUMENT: names line and field, or the input has no item; INTERNAL: reading
  //         failed
  absl::StatusOr<std::optional<ScoreLine>> Next();
  // The same, but a line that is no item has its error in its place.
  absl::StatusOr<std::optional<ScoreLine>> NextRow();

  // Leaves out the lines up to `line_number`, which are not parsed. They count as items.
  // Errors  OUT_OF_RANGE: the input has fewer lines
  absl::Status SkipTo(int64_t line_number);

 private:
  std::unique_ptr<std::ifstream> file_;
  std::istream* lines_;
  int64_t line_number_ = 0;
  int64_t num_items_ = 0;
  bool is_at_end_ = false;
};

// Counts the lines that are not empty. nullopt: not a regular file.
// Errors  NOT_FOUND: the file cannot be opened
absl::StatusOr<std::optional<int64_t>> CountLines(const std::string& path);

// Checks all lines and counts the items. nullopt: not a regular file, so it can be read only once.
// Errors  those of ScoreFileReader
absl::StatusOr<std::optional<int64_t>> CountScoreItems(const std::string& path);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SCORE_FILE_H_
