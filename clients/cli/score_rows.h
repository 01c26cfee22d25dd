// Scores the rows of a file of any size. A row that cannot be scored has its error in its place.
#ifndef LSSAR_CLIENTS_CLI_SCORE_ROWS_H_
#define LSSAR_CLIENTS_CLI_SCORE_ROWS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/score_stream.h"

namespace lssar::cli {

// What became of a row. Errors are INVALID_ARGUMENT: the line is not an item, or the server refused
// the item (too long, an id out of range).
using ScoredRow = absl::StatusOr<std::vector<ScoredContinuation>>;
using OnScoredRow = std::function<absl::Status(int64_t line_number, const ScoredRow& row)>;

// As RunScoreStream, but the job goes on after a row that is invalid. Calls `on_row` for rows in
// the order of the file.
// Errors  those of `on_row` and of Score other than INVALID_ARGUMENT; CANCELLED: interrupted
absl::Status RunScoreRows(Service* stub, const ScoreStreamOptions& options, Interrupt* interrupt,
                          ScoreFileReader* reader, const OnScoredRow& on_row);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SCORE_ROWS_H_
