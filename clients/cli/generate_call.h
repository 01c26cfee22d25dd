// One Generate call from request to result.
#ifndef LSSAR_CLIENTS_CLI_GENERATE_CALL_H_
#define LSSAR_CLIENTS_CLI_GENERATE_CALL_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "clients/cli/interrupt.h"
#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

struct GeneratedChoice {
  std::string text;
  std::vector<v1::Token> tokens;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  std::string stop_string;  // the one that matched
};

// What came, also when the call failed or was cancelled on the way.
struct GenerateResult {
  v1::Started started;
  std::vector<v1::Token> prompt_tokens;  // with --prompt-logprobs
  std::vector<GeneratedChoice> choices;
  std::optional<v1::Finished> finished;
  // As seen here, from the call on; -1: it never came.
  int64_t first_token_us = -1;
  int64_t last_token_us = -1;
  int num_first_tokens = 0;  // in the first delta: they cost the prefill, not a decode step

  int NumTokens() const;
  // Of decoding, without each choice's first token: by the server's clock, or, of a call that did
  // not finish, by arrival here. 0: nothing came after the first.
  double TokensPerSecond() const;
};

using OnDelta = std::function<void(const v1::Delta&)>;

// Calls `on_delta` for each delta as it comes, on this thread.
absl::Status RunGenerate(v1::Inference::StubInterface* stub, const v1::GenerateRequest& request,
                         Interrupt* interrupt, const OnDelta& on_delta, GenerateResult* result);

// "EOS", "LENGTH", ...
std::string FinishReasonName(v1::FinishReason reason);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_GENERATE_CALL_H_
