// Validates and converts wire messages to engine requests. Pure functions. Every field and limit
// that proto/lssar/v1/inference.proto documents is checked here.
// Errors  INVALID_ARGUMENT, by FieldError (base/field_error.h): names field, value and limit:
//         "sampling.top_p is 1.5; it must be in [0, 1]"
//         CANCELLED: ParseContext::should_stop returned true
//         FAILED_PRECONDITION: the request needs a tokenizer, a chat template or a BOS that the
//         checkpoint does not have; attention_override or steering where the server does not allow
//         it; another checkpoint_hash than this checkpoint's
//         UNIMPLEMENTED: an attention_override that the backend does not compute
#ifndef LSSAR_SERVER_API_PARSE_REQUEST_H_
#define LSSAR_SERVER_API_PARSE_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "runtime/limits.h"
#include "runtime/request.h"

namespace lssar {

class GrammarCache;
class LoadedModel;
class WorkerPool;

// What the checks need to know about the model. `checkpoint` must outlive the call.
struct ParseContext {
  const Checkpoint* checkpoint = nullptr;
  int max_model_len = 0;                               // tokens
  uint64_t default_seed = 0;                           // for requests that set none
  int default_max_tokens = limits::kDefaultMaxTokens;  // the same; cut to what is left
  bool only_prompt = false;                            // no token is generated: max_tokens is 0
  int max_choices = limits::kMaxChoices;               // n, at most
  bool allow_attention_override = false;
  bool allow_steering = false;
  DType kv_cache_dtype = DType::kF16;  // must serve an attention_override
  const Backend* backend = nullptr;    // must compute an attention_override; null: all are computed
  GrammarCache* grammars = nullptr;    // compiles constraints; null: there are none
  WorkerPool* workers = nullptr;       // of which the call is a job; null: of none
  std::string tenant = {};             // whose turns the constraints take
  // Polled during long work; true ends it.
  std::function<bool()> should_stop = [] { return false; };
  // Bytes of one text; 0: as many as max_model_len of the longest token have. A longer text cannot
  // fit, and is refused before it is tokenized.
  size_t max_text_bytes = 0;
  bool add_bos = true;  // to a chat, where the checkpoint does and the template has not
};

// The most probable ids at a position that a request may ask for: a vocabulary may be small.
inline int MaxLogprobs(const ModelConfig& config) {
  return std::min(limits::kMaxLogprobs, config.vocab_size);
}

ParseContext ContextOf(const LoadedModel& model, uint64_t default_seed = 0);

// Returns `bos` followed by the ids of `text`.
// Errors  INVALID_ARGUMENT: not UTF-8, or longer than ParseContext::max_text_bytes
//         FAILED_PRECONDITION: no tokenizer
absl::StatusOr<std::vector<int32_t>> EncodeField(const std::string& field, std::string_view text,
                                                 const ParseContext& context,
                                                 std::span<const int32_t> bos);

struct ParsedGenerate {
  Request request;  // without id and deadline, which the caller sets
  int stream_interval = 1;
  std::string echo;  // the first text of each choice
};

absl::StatusOr<ParsedGenerate> ParseGenerate(const v1::GenerateRequest& message,
                                             const ParseContext& context);

struct ParsedScore {
  // In the message's order. With dynamic NTK an item becomes several requests: one for each rope
  // base, so that a score does not depend on the lengths of the item's other continuations.
  std::vector<Request> items;
  std::vector<int> item_indices;  // [items.size()]: index of the message's item
  // The message's items that cannot be scored, with INVALID_ARGUMENT or FAILED_PRECONDITION.
  std::map<int, absl::Status> errors;
};

// Ensures  an item is scored; where none is, the first one's error is that of the call
//          if context and continuation of an item are both text, they are tokenized as one string,
//          and the context's trailing white space moves to the continuation
// Cost     the context is tokenized once, but for its end, which what follows may change
absl::StatusOr<ParsedScore> ParseScore(const v1::ScoreRequest& message,
                                       const ParseContext& context);

// One request for each input, in the message's order.
absl::StatusOr<std::vector<Request>> ParseEmbed(const v1::EmbedRequest& message,
                                                const ParseContext& context);

// The caller sets id and deadline.
absl::StatusOr<Request> ParseCapture(const v1::CaptureAttentionRequest& message,
                                     const ParseContext& context);

absl::StatusOr<std::vector<int32_t>> ParseTokenize(const v1::TokenizeRequest& message,
                                                   const ParseContext& context);

absl::StatusOr<std::vector<int32_t>> ParseDetokenize(const v1::DetokenizeRequest& message,
                                                     const ParseContext& context);

}  // namespace lssar

#endif  // LSSAR_SERVER_API_PARSE_REQUEST_H_
