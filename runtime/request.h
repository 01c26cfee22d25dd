// What a caller asks of the engine and what comes back. The server and the CLI use these types.
#ifndef LSSAR_RUNTIME_REQUEST_H_
#define LSSAR_RUNTIME_REQUEST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "kernels/attention_spec.h"
#include "kernels/ops.h"
#include "kernels/sampling.h"
#include "models/language_model.h"
#include "runtime/attention_statistics.h"
#include "runtime/limits.h"

namespace lssar {

class Grammar;  // models/text/grammar.h

struct GenerateParams {
  SamplingParams sampling = {};
  int num_choices = 1;  // n
  int max_tokens = 0;   // new tokens, >= 1
  int min_tokens = 0;   // EOS, stop ids and stop strings are ignored for this many tokens
  bool ignore_eos = false;
  // UTF-8, each >= 1 byte. Matched across token boundaries.
  std::vector<std::string> stop_strings = {};
  std::vector<int32_t> stop_ids = {};  // end the text
  bool includes_stop = false;          // what ends the text is a part of it
  bool skips_special_tokens = true;    // else their names are in the text
  // Never sampled in a row, besides sampling.banned_ids: each >= 2 ids.
  std::vector<std::vector<int32_t>> banned_sequences = {};
  std::shared_ptr<const Grammar> grammar = {};  // the text fits it; null: any text
  int num_logprobs = -1;  // -1: none; 0: the chosen token's; N <= vocab_size: also the N best
  int num_prompt_logprobs = -1;  // the same for the prompt's tokens (choice 0 only)
  // Draft tokens of each choice in a step, at most; 0: no speculative decoding. EngineOptions has
  // another bound. Results have the same bits either way.
  int speculative_tokens = limits::kMaxSpeculativeTokens.max;
};

// Log-probabilities of each continuation after the context. The context is computed once.
struct ScoreParams {
  std::vector<std::vector<int32_t>> continuations = {};  // each >= 1 token
  int num_logprobs = 0;                                  // N best besides the token itself
  // Log-probabilities at each position besides those: of these ids, or of the whole vocabulary.
  std::vector<int32_t> logprob_ids = {};
  bool full_distribution = false;  // then logprob_ids is empty
  // ContinuationScore::index of each continuation; empty: 0, 1, ...
  std::vector<int> indices = {};
};

// The final attention weights of query tokens of the prompt. Each list is ascending, without
// repeats, and has >= 1 entry.
struct CaptureParams {
  std::vector<int32_t> layers = {};
  std::vector<int32_t> heads = {};
  std::vector<int32_t> rows = {};  // positions of the query tokens in the prompt
  int top_k = 0;                   // largest weights of each row and head; 0: all non-zero ones
  bool statistics = false;         // of each head over the rows, in place of their weights
};

enum class Pooling : uint8_t {
  kLast,   // the last token's vector
  kMean,   // the mean over all tokens
  kToken,  // every token's vector
};

// Hidden states of the prompt.
struct EmbedParams {
  Pooling pooling = Pooling::kLast;
  // In the order of the results, without repeats, >= 1: kFinalNorm, or 0 to num_hidden_layers.
  std::vector<int32_t> layers = {kFinalNorm};
  // The tokens for kMean and kToken: ascending, without repeats; empty: all.
  std::vector<int32_t> positions = {};
  bool apply_head = false;  // the regression head's outputs in place of the hidden states
  bool normalize = false;   // to L2 norm 1, after pooling and head
};

// Another attention than the checkpoint's, which the requests of one call share.
struct AttentionOverride {
  std::vector<AttentionSpec> layers = {};  // of each layer
  std::string name = {};                   // DescribeAttention of them: equal if they are
};

// What is added to the residual stream of one request.
struct Steering {
  std::vector<SteeringVector> vectors = {};  // >= 1
  std::string description = {};              // for receipts
  std::string name = {};  // equal if the vectors and the request's attention are (PrefixRoot)
};

// A validated request: every field is in its range (server/api/parse_request.h checks user input).
struct Request {
  std::string id = {};               // for logs
  std::vector<int32_t> prompt = {};  // generate: the prompt; score: the context. >= 1 token
  std::variant<GenerateParams, ScoreParams, CaptureParams, EmbedParams> params = {};
  std::optional<Clock::time_point> deadline = {};
  int priority = 0;  // [-10, 10]; higher runs first; waiting raises it
  // Reads and fills the prefix cache. Results have the same bits either way.
  bool use_prefix_cache = true;
  std::string cache_salt = {};  // pages are shared only among requests with equal salts
  // Null: the checkpoint's own. Pages are shared only among requests with equal attention.
  std::shared_ptr<const AttentionOverride> attention = {};
  // Null: none. Pages are shared only among requests with equal steering.
  std::shared_ptr<const Steering> steering = {};

  // `params` of one kind; null: the request is of another.
  GenerateParams* Generate() { return std::get_if<GenerateParams>(&params); }
  const GenerateParams* Generate() const { return std::get_if<GenerateParams>(&params); }
  ScoreParams* Score() { return std::get_if<ScoreParams>(&params); }
  const ScoreParams* Score() const { return std::get_if<ScoreParams>(&params); }
  CaptureParams* Capture() { return std::get_if<CaptureParams>(&params); }
  const CaptureParams* Capture() const { return std::get_if<CaptureParams>(&params); }
  const EmbedParams* Embed() const { return std::get_if<EmbedParams>(&params); }
};

// For PrefixRoot: which function of the tokens K and V are; empty: the checkpoint's own.
inline std::string_view FunctionName(const Request& request) {
  if (request.steering != nullptr) return request.steering->name;
  return request.attention != nullptr ? std::string_view(request.attention->name)
                                      : std::string_view();
}

// Tokens of the prompt; score: of the context and all continuations.
inline int64_t NumPromptTokens(const Request& request) {
  auto num_tokens = int64_t(request.prompt.size());
  if (!request.Score()) return num_tokens;
  for (const auto& continuation : request.Score()->continuations) {
    num_tokens += int64_t(continuation.size());
  }
  return num_tokens;
}

// Tokens of the longest continuation; 0: the request scores none.
inline int64_t LongestContinuation(const Request& request) {
  size_t longest = 0;
  if (const ScoreParams* const score = request.Score()) {
    for (const auto& ids : score->continuations) longest = std::max(longest, ids.size());
  }
  return int64_t(longest);
}

enum class FinishReason : uint8_t {
  kEos,
  kStopString,
  kStopId,
  kLength,
  // No id that may be sampled can follow in GenerateParams::grammar. The text fits it, or does not.
  kComplete,
  kDeadEnd,
};

struct TokenResult {
  int32_t id = 0;
  float logprob = 0;  // of the raw model distribution; 0 when not requested
  std::vector<TokenLogprob> top = {};
};

// New output of one choice from one engine step.
struct GenerateDelta {
  int choice = 0;
  std::vector<TokenResult> tokens = {};  // includes the token that ended the text (EOS, a stop id)
  // Whole UTF-8. May lag behind the tokens: a partial stop string or character is withheld.
  std::string text = {};
  std::optional<FinishReason> finish = {};
  std::string stop_string = {};  // the one that matched, when finish is kStopString
};

// Log-probabilities of prompt tokens [first, first + tokens.size()). Position 0 has none.
struct PromptDelta {
  int first = 0;
  std::vector<TokenResult> tokens = {};
};

struct ContinuationScore {
  int index = 0;
  double logprob = 0;     // sum over the tokens, nats
  bool is_greedy = true;  // every token was the model's best
  std::vector<TokenResult> tokens = {};
};

// Log-probabilities at consecutive positions of a continuation, of ScoreParams::logprob_ids or of
// every id. They come before its ContinuationScore.
struct LogprobBlock {
  int index = 0;                   // of the continuation, as in ContinuationScore
  int first = 0;                   // token of the continuation at the first position
  int size = 0;                    // log-probabilities at a position
  std::vector<float> values = {};  // [positions, size], nats
};

struct KeyWeight {
  int32_t key = 0;  // position
  float weight = 0;
};

// The attention of one query token in one head: one row of the attention matrix. Weights sum to 1.
struct RowWeights {
  int layer = 0;
  int head = 0;
  int row = 0;                       // position of the query token; it attends row + 1 keys
  int num_nonzero = 0;               // keys with a weight that is neither zero nor negligible
  int num_zero = 0;                  // keys whose weight the formula makes zero: AttentionRow
  double entropy = 0;                // of all weights, nats
  double dropped = 0;                // sum of the weights that are not in `keys`
  std::vector<KeyWeight> keys = {};  // ascending positions
};

// The vectors of consecutive tokens. kLast and kMean give those of one.
struct EmbeddingBlock {
  int first = 0;       // index of the first token: its position, or that of EmbedParams::positions
  int num_layers = 1;  // vectors of a token
  int size = 0;        // floats in a vector: hidden_size or the head's outputs
  std::vector<float> values = {};  // [number of tokens, num_layers, size]
};

// Generate gives PromptDelta, before all else, and GenerateDelta. Score gives ContinuationScore,
// and before it LogprobBlocks. Capture gives the rows of one step, ordered by row, then layer, then
// head; with statistics, once, those of each head over all rows, ordered by layer, then head. Embed
// gives the vectors of one step, in order.
using EngineResult =
    std::variant<GenerateDelta, PromptDelta, ContinuationScore, LogprobBlock,
                 std::vector<RowWeights>, std::vector<HeadStatistics>, EmbeddingBlock>;

// Counts of tokens, and times in microseconds.
struct RequestStats {
  int num_prompt_tokens = 0;  // score: of the context and all continuations
  int num_cached_tokens = 0;
  int num_generated_tokens = 0;  // over all choices
  int num_preemptions = 0;       // each one recomputes a sequence
  int num_draft_tokens = 0;      // computed to be verified (speculative decoding)
  int num_accepted_tokens = 0;   // of these, tokens that became output
  int64_t queue_us = 0;          // Submit to admission
  int64_t prefill_us = 0;        // admission to the first token or score
  int64_t decode_us = 0;         // from there to the end
  AttentionStats attention = {};
};

// Receives the results of a request.
// Threads   called on the engine thread, in order; must not block
// Ensures   OnDone is called exactly once for each request that Submit accepted, and no call comes
//           after it
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  // Backpressure. False while the reader is behind by more than its bound: the request's sequences
  // are not scheduled until it is true again (Engine::Handle::Resume wakes an idle engine). Called
  // once a step.
  virtual bool IsWritable() const { return true; }
  // The request was admitted. Comes before all results; a request that ends while it waits gets
  // OnDone only.
  virtual void OnAdmitted(const RequestStats& stats) = 0;
  virtual void OnResult(EngineResult result) = 0;
  // OK: every result was delivered. CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE (the engine stopped),
  // DATA_LOSS (NaN or infinite logits or hidden states), INTERNAL.
  virtual void OnDone(const absl::Status& status, const RequestStats& stats) = 0;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_REQUEST_H_
