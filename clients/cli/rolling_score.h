// Log-likelihood of whole texts, longer than a context: window by window, each token once.
#ifndef LSSAR_CLIENTS_CLI_ROLLING_SCORE_H_
#define LSSAR_CLIENTS_CLI_ROLLING_SCORE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/sharing_flags.h"
#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

// Ids [first, scored) are context, [scored, end) are scored.
struct RollingWindow {
  int64_t first = 0;
  int64_t scored = 0;
  int64_t end = 0;

  bool operator==(const RollingWindow&) const = default;
};

// Windows of at most `window` ids that score each id but the first, once: the first one scores all
// it holds, the later ones `stride` ids each, after as many as fit before them. The last one scores
// what is left, after all the more. stride = window - 1 is what lm-evaluation-harness does.
// Requires  window >= 2, 1 <= stride < window
std::vector<RollingWindow> RollingWindows(int64_t num_ids, int window, int stride);

struct RollingScore {
  int64_t num_windows = 0;
  int64_t num_tokens = 0;  // scored
  int64_t num_bytes = 0;   // of their pieces
  double logprob = 0;      // sum, nats
};

struct RollingOptions {
  int window = 0;
  int stride = 0;
  SharingFlags sharing;
};

// Scores `ids`, the first of which is context alone. Calls on_tokens(n) as tokens are scored.
// Errors  those of Score
absl::StatusOr<RollingScore> RunRollingScore(v1::Inference::StubInterface* stub,
                                             const std::vector<int32_t>& ids,
                                             const RollingOptions& options, Interrupt* interrupt,
                                             const std::function<void(int)>& on_tokens);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_ROLLING_SCORE_H_
