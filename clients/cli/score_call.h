// One Score call from request to results.
#ifndef LSSAR_CLIENTS_CLI_SCORE_CALL_H_
#define LSSAR_CLIENTS_CLI_SCORE_CALL_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/cli/interrupt.h"
#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

struct ScoredContinuation {
  v1::ContinuationScore score;
  std::vector<v1::Token> tokens;  // with per_token
};

// [item][continuation], as in the request.
using ScoredItems = std::vector<std::vector<ScoredContinuation>>;

using OnScore = std::function<void(const v1::ContinuationScore&)>;

// Calls `on_score` for each score as it comes, on this thread.
// Errors  those of the call; INTERNAL: the server left a continuation out
absl::StatusOr<ScoredItems> RunScore(v1::Inference::StubInterface* stub,
                                     const v1::ScoreRequest& request, Interrupt* interrupt,
                                     const OnScore& on_score);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SCORE_CALL_H_
