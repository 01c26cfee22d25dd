// What a user asks of the engine and what comes back. The server and the CLI speak these types.
#ifndef LSSAR_RUNTIME_REQUEST_H_
#define LSSAR_RUNTIME_REQUEST_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/check.h"
#include "kernels/ops.h"
#include "kernels/sampling.h"

namespace lssar {

using Clock = std::chrono::steady_clock;

struct GenerateParams {
  SamplingParams sampling = {};
  int num_choices = 1;  // n
  int max_tokens = 0;   // new tokens, >= 1
  int min_tokens = 0;   // EOS, stop ids and stop strings do not end the text before that many
  bool ignore_eos = false;
  // UTF-8, each >= 1 byte; matched across token borders, never part of the text.
  std::vector<std::string> stop_strings = {};
  std::vector<int32_t> stop_ids = {};  // end the text and are not part of it
  int num_logprobs = -1;               // -1: none; 0: the chosen token's; N: and the N best
  int num_prompt_logprobs = -1;        // the same for the prompt's own tokens (choice 0 alone)
};

// Log-probabilities of each continuation after the context. The context is computed once.
struct ScoreParams {
  std::vector<std::vector<int32_t>> continuations = {};  // each >= 1 token
  int num_logprobs = 0;                                  // N best beside the token itself
};

// The final attention weights of rows of the prompt. Each list ascending, without repeats, >= 1
// entry.
struct CaptureParams {
  std::vector<int32_t> layers = {};
  std::vector<int32_t> heads = {};
  std::vector<int32_t> rows = {};  // positions in the prompt
  int top_k = 0;                   // of each row and head, the largest; 0: all that are not zero
};

// A validated request: nothing in it is out of range (server/parse_request.h, the only reader of
// user input, made sure).
struct Request {
  std::string id = {};               // for logs
  std::vector<int32_t> prompt = {};  // generate: the prompt; score: the context. >= 1 token
  std::optional<GenerateParams> generate = {};  // exactly one of the three is set
  std::optional<ScoreParams> score = {};
  std::optional<CaptureParams> capture = {};
  std::optional<Clock::time_point> deadline = {};
  int priority = 0;  // [-10, 10]; higher first, raised by waiting
  // Takes prompt pages from the prefix cache and leaves them there. The same bits either way.
  bool use_prefix_cache = true;
  std::string cache_salt = {};  // pages are shared among equal salts only
};

enum class FinishReason : uint8_t { kEos, kStopString, kStopId, kLength };

struct TokenResult {
  int32_t id = 0;
  float logprob = 0;  // of the raw model distribution; 0 when none were asked for
  std::vector<TokenLogprob> top = {};
};

// What became known of one choice in one engine step.
struct GenerateDelta {
  int choice = 0;
  std::vector<TokenResult> tokens = {};  // the one that ended the text (EOS, a stop id) among them
  // Whole UTF-8; may lag behind the tokens (a held-back stop string or character).
  std::string text = {};
  std::optional<FinishReason> finish = {};
  std::string stop_string = {};  // the one that matched, when finish is kStopString
};

// Logprobs of prompt tokens [first, first + tokens.size()); position 0 has none and is not sent.
struct PromptDelta {
  int first = 0;
  std::vector<TokenResult> tokens = {};
};

struct ContinuationScore {
  int index = 0;
  double logprob = 0;     // sum over the tokens, nats
  bool is_greedy = true;  // every token was the row's best
  std::vector<TokenResult> tokens = {};
};

struct KeyWeight {
  int32_t key = 0;  // position
  float weight = 0;
};

// One row's attention in one head. Weights sum to 1.
struct RowWeights {
  int layer = 0;
  int head = 0;
  int row = 0;                       // position; it attends row + 1 keys
  int num_nonzero = 0;               // of these keys
  double entropy = 0;                // of all weights, nats
  double dropped = 0;                // sum of the weights that are not in `keys`
  std::vector<KeyWeight> keys = {};  // by rising position
};

// Tokens and microseconds.
struct RequestStats {
  int num_prompt_tokens = 0;  // score: of the context and all continuations
  int num_cached_tokens = 0;
  int num_generated_tokens = 0;  // over all choices
  int num_preemptions = 0;       // times that a sequence was computed again
  int64_t queue_us = 0;          // Submit to admission
  int64_t prefill_us = 0;        // admission to the first token, or first score
  int64_t decode_us = 0;         // from there to the end
  AttentionStats attention = {};
};

// Where a request's results go. Called on the engine thread, in order, never after OnDone; must
// not block. OnDone comes exactly once for every request that Submit accepted. A request has
// results of its own kind alone: a sink defines what its requests may give.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  // False while the reader is behind by more than its bound: the request's sequences get no rows
  // until it is true again (Engine::Handle::Resume wakes an idle engine). Asked once a step.
  virtual bool IsWritable() const { return true; }
  // The request was admitted: first of all calls (a request that ends while queued gets OnDone
  // alone).
  virtual void OnAdmitted(const RequestStats& stats) = 0;
  // generate
  virtual void OnPromptLogprobs(PromptDelta /*delta*/) { LSSAR_CHECK(false); }
  virtual void OnTokens(GenerateDelta /*delta*/) { LSSAR_CHECK(false); }
  // score
  virtual void OnScore(ContinuationScore /*score*/) { LSSAR_CHECK(false); }
  // capture: what one step gave, by row, then layer, then head
  virtual void OnWeights(std::vector<RowWeights> /*rows*/) { LSSAR_CHECK(false); }
  // OK: everything asked for was delivered. CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE (the engine
  // was stopped), DATA_LOSS (NaN or infinite logits), INTERNAL.
  virtual void OnDone(const absl::Status& status, const RequestStats& stats) = 0;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_REQUEST_H_
