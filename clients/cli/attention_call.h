// One CaptureAttention call from request to result.
#ifndef LSSAR_CLIENTS_CLI_ATTENTION_CALL_H_
#define LSSAR_CLIENTS_CLI_ATTENTION_CALL_H_

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/cli/interrupt.h"
#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

struct CapturedAttention {
  v1::CaptureStarted started;
  std::vector<v1::TokenLogprob> prompt;  // up to the last row
  std::vector<v1::RowWeights> rows;      // by row, then layer, then head
  std::optional<v1::Finished> finished;
};

// Calls `on_rows` with the number of rows as they come, on this thread.
// Errors  those of the call; INTERNAL: a row with keys that are not of the prompt
absl::StatusOr<CapturedAttention> RunCapture(v1::Inference::StubInterface* stub,
                                             const v1::CaptureAttentionRequest& request,
                                             Interrupt* interrupt,
                                             const std::function<void(int)>& on_rows);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_ATTENTION_CALL_H_
