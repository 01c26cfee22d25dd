// Items to score, from JSON lines.
#ifndef LSSAR_CLIENTS_CLI_SCORE_FILE_H_
#define LSSAR_CLIENTS_CLI_SCORE_FILE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

// One item a line: {"context": C, "continuations": [C, ...]}, each C a text or a list of token
// ids; "context" may be missing or "". Empty lines are skipped.
// Errors  INVALID_ARGUMENT: names line and field
absl::StatusOr<std::vector<v1::ScoreItem>> ParseScoreLines(absl::string_view lines);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SCORE_FILE_H_
