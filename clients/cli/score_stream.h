// Scores any number of items in bounded memory, as fast as the server computes them.
#ifndef LSSAR_CLIENTS_CLI_SCORE_STREAM_H_
#define LSSAR_CLIENTS_CLI_SCORE_STREAM_H_

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

// The next item; nullopt: the end. As ScoreFileReader::Next.
using NextScoreLine = std::function<absl::StatusOr<std::optional<ScoreLine>>()>;
using OnScoredItem =
    std::function<void(const v1::ScoreItem&, const std::vector<ScoredContinuation>&)>;

// Groups items into batches of 64 and keeps several Score calls in flight, because a call leaves
// the engine with few items at its end. Calls `next` and `on_scored` on this thread; `on_scored`
// gets the items in their order. At most 2 * max_concurrency batches are in memory. Repeats a call
// while the server's queue is full.
// Errors  the first in the order of the items, of `next` or of Score, after the items before it are
//         handed over; a field of an item is named by its line. CANCELLED: interrupted
absl::Status RunScoreStream(Service* stub, const ScoreStreamOptions& options, Interrupt* interrupt,
                            const NextScoreLine& next, const OnScoredItem& on_scored);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SCORE_STREAM_H_
