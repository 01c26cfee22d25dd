// Scores any number of items in bounded memory, as fast as the server computes them. An item that
// cannot be scored has its error in its place.
#ifndef LSSAR_CLIENTS_CLI_SCORE_STREAM_H_
#define LSSAR_CLIENTS_CLI_SCORE_STREAM_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/score_file.h"

namespace lssar::cli {

struct ScoreStreamOptions {
  int max_concurrency = 2;  // Score calls in flight
  bool per_token = false;   // each token with its log-probability and the most probable one
  SchedulingFlags scheduling;
};

// The next item; nullopt: the end. As ScoreFileReader::Next or NextRow.
using NextScoreLine = std::function<absl::StatusOr<std::optional<ScoreLine>>()>;
// What became of a line. Its own error, or that with which the server has refused the item (too
// long, an id out of range): a field is named by the line.
using ItemScores = absl::StatusOr<std::vector<ScoredContinuation>>;
// `item` is empty where the line is none. An error ends the job.
using OnScoredLine = std::function<absl::Status(int64_t line_number, const v1::ScoreItem& item,
                                                const ItemScores& scores)>;

// Groups lines into batches of 64 and keeps several Score calls in flight, because a call leaves
// the engine with few items at its end. Calls `next` and `on_line` on this thread; `on_line` gets
// the lines in their order. At most 2 * max_concurrency batches are in memory. Repeats a call while
// the server's queue is full.
// Errors  the first in the order of the lines, of `next`, of `on_line` or of Score other than
//         INVALID_ARGUMENT of an item, after the lines before it are handed over. CANCELLED:
//         interrupted
absl::Status RunScoreStream(Service* stub, const ScoreStreamOptions& options, Interrupt* interrupt,
                            const NextScoreLine& next, const OnScoredLine& on_line);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SCORE_STREAM_H_
