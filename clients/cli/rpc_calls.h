// The calls of the service, each from its request to a complete result.
#ifndef LSSAR_CLIENTS_CLI_RPC_CALLS_H_
#define LSSAR_CLIENTS_CLI_RPC_CALLS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/interrupt.h"
#include "lssar/v1/inference.pb.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace lssar::cli {

class Service;

// The same code and message. UNAVAILABLE also for a stream that a proxy ended because a server is
// gone.
absl::Status ToStatus(const grpc::Status& status);

// How long a server that refuses a call asks its client to wait: the google.rpc.RetryInfo in the
// status details; nullopt without one.
std::optional<std::chrono::microseconds> RetryDelayOf(const grpc::Status& status);

// Repeats `call` after RESOURCE_EXHAUSTED, as late as the server asks for (the queue is full), and
// after UNAVAILABLE (no connection, loading, draining, ended during the call), by the rules of
// Attempts (retry.h). Gives up with the last status, and when `interrupt` fires.
// Requires  `call` may run again after it has received a part of its reply
absl::Status RetryRefused(Interrupt* interrupt, const std::function<absl::Status()>& call);

// Until now.
int64_t MicrosSince(std::chrono::steady_clock::time_point start);

absl::StatusOr<v1::GetInfoReply> DescribeServer(Service* stub);

absl::StatusOr<v1::GetStatsReply> ReadStats(Service* stub);

// `add_bos`: nullopt for the checkpoint's rule for prompts.
absl::StatusOr<std::vector<int32_t>> Tokenize(Service* stub, const std::string& text,
                                              std::optional<bool> add_bos, Interrupt* interrupt);

struct GeneratedChoice {
  std::string text;
  std::vector<v1::Token> tokens;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  std::string stop_string;  // the one that matched
};

// Everything that was received, also when the call failed or was cancelled.
struct GenerateResult {
  v1::Started started;
  std::vector<v1::Token> prompt_tokens;  // with prompt_logprobs
  std::vector<GeneratedChoice> choices;
  std::optional<v1::Finished> finished;
  // Microseconds from the start of the call, measured by the client; -1: not received.
  int64_t first_token_us = -1;
  int64_t last_token_us = -1;
  int num_first_tokens = 0;  // tokens of the first delta; prefill made them, not a decode step

  int NumTokens() const;
  // Decoding speed, without the first token of each choice: by the server's clock, or by arrival
  // times if the call did not finish. 0 if nothing followed the first token.
  double TokensPerSecond() const;
};

using OnDelta = std::function<void(const v1::Delta&)>;

// Calls `on_delta` for each delta as it arrives, on this thread.
absl::Status RunGenerate(Service* stub, const v1::GenerateRequest& request, Interrupt* interrupt,
                         const OnDelta& on_delta, GenerateResult* result);

// "EOS", "LENGTH", ...
std::string FinishReasonName(v1::FinishReason reason);

struct ScoredContinuation {
  v1::ContinuationScore score;
  std::vector<v1::Token> tokens;  // with per_token
};

// [item][continuation], as in the request.
using ScoredItems = std::vector<std::vector<ScoredContinuation>>;

using OnScore = std::function<void(const v1::ContinuationScore&)>;

// Calls `on_score` for each score as it arrives, on this thread. `finished`, which may be null: the
// last message. `item_errors`, which may be null: why an item, by its index, has no scores.
// Errors  those of the call; that of an item without `item_errors`; INTERNAL: the server left a
//         continuation out
absl::StatusOr<ScoredItems> RunScore(Service* stub, const v1::ScoreRequest& request,
                                     Interrupt* interrupt, const OnScore& on_score,
                                     v1::ScoreFinished* finished = nullptr,
                                     std::map<int, absl::Status>* item_errors = nullptr);

// The vectors of one input: of one token, or of each with POOLING_TOKEN.
struct InputVectors {
  int num_layers = 1;         // vectors of a token
  int size = 0;               // elements of a vector
  std::vector<float> values;  // [tokens, num_layers, size]
};

// One entry per input.
// Errors  those of the call; INTERNAL: the server left an input out, or a message has no whole
//         number of vectors
absl::StatusOr<std::vector<InputVectors>> RunEmbed(Service* stub, const v1::EmbedRequest& request,
                                                   Interrupt* interrupt);

struct CapturedAttention {
  v1::CaptureStarted started;
  std::vector<v1::TokenLogprob> prompt;        // up to the last row
  std::vector<v1::RowWeights> rows;            // by row, then layer, then head
  std::vector<v1::HeadStatistics> statistics;  // by layer, then head; in place of rows
  std::optional<v1::Finished> finished;
};

// Calls `on_rows` with the number of rows as they arrive, on this thread.
// Errors  those of the call; INTERNAL: a row has keys outside the prompt
absl::StatusOr<CapturedAttention> RunCapture(Service* stub,
                                             const v1::CaptureAttentionRequest& request,
                                             Interrupt* interrupt,
                                             const std::function<void(int)>& on_rows);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_RPC_CALLS_H_
