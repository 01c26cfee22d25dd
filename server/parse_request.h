// Validates and converts wire messages to engine requests. Pure functions. Every field and limit
// that proto/lssar/v1/inference.proto documents is checked here.
// Errors  INVALID_ARGUMENT: names field, value and limit: "sampling.top_p is 1.5; it must be in
//         (0, 1]"
//         FAILED_PRECONDITION: the request needs a tokenizer, a chat template or a BOS that the
//         checkpoint does not have
#ifndef LSSAR_SERVER_PARSE_REQUEST_H_
#define LSSAR_SERVER_PARSE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "models/checkpoint.h"
#include "runtime/request.h"

namespace lssar {

class ServedModel;

// What the checks need to know about the model. `checkpoint` must outlive the call.
struct ParseContext {
  const Checkpoint* checkpoint = nullptr;
  int max_model_len = 0;      // tokens
  uint64_t default_seed = 0;  // for requests that set none
};

ParseContext ContextOf(const ServedModel& model, uint64_t default_seed = 0);

struct ParsedGenerate {
  Request request;  // without id and deadline, which the caller sets
  int stream_interval = 1;
  std::string echo;  // the first text of each choice
};

absl::StatusOr<ParsedGenerate> ParseGenerate(const v1::GenerateRequest& message,
                                             const ParseContext& context);

struct ParsedScore {
  std::vector<Request> items;  // in the message's order
  bool per_token = false;
};

// Ensures  if context and continuation of an item are both text, they are tokenized as one string,
//          and the context's trailing white space moves to the continuation
absl::StatusOr<ParsedScore> ParseScore(const v1::ScoreRequest& message,
                                       const ParseContext& context);

// The caller sets id and deadline.
absl::StatusOr<Request> ParseCapture(const v1::CaptureAttentionRequest& message,
                                     const ParseContext& context);

absl::StatusOr<std::vector<int32_t>> ParseTokenize(const v1::TokenizeRequest& message,
                                                   const ParseContext& context);

absl::StatusOr<std::vector<int32_t>> ParseDetokenize(const v1::DetokenizeRequest& message,
                                                     const ParseContext& context);

}  // namespace lssar

#endif  // LSSAR_SERVER_PARSE_REQUEST_H_
