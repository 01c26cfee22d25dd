// What a client sent -> what the engine takes. Pure, and the only reader of user input: every field
// and limit of proto/lssar/v1/inference.proto is checked here.
// Errors  INVALID_ARGUMENT: "sampling.top_p is 1.5; it must be in (0, 1]"; FAILED_PRECONDITION: the
//         checkpoint lacks a tokenizer, a chat template or a BOS that the request needs
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
  Request request;  // id and deadline are the caller's to set
  int stream_interval = 1;
  std::string echo;  // what each choice's text begins with
};

absl::StatusOr<ParsedGenerate> ParseGenerate(const v1::GenerateRequest& message,
                                             const ParseContext& context);

struct ParsedScore {
  std::vector<Request> items;  // in the order of the message's
  bool per_token = false;
};

// Ensures  an item whose context and continuation are both text is tokenised as one string, the
//          context's trailing white space moved to the continuation
absl::StatusOr<ParsedScore> ParseScore(const v1::ScoreRequest& message,
                                       const ParseContext& context);

// id and deadline are the caller's to set.
absl::StatusOr<Request> ParseCapture(const v1::CaptureAttentionRequest& message,
                                     const ParseContext& context);

absl::StatusOr<std::vector<int32_t>> ParseTokenize(const v1::TokenizeRequest& message,
                                                   const ParseContext& context);

absl::StatusOr<std::vector<int32_t>> ParseDetokenize(const v1::DetokenizeRequest& message,
                                                     const ParseContext& context);

}  // namespace lssar

#endif  // LSSAR_SERVER_PARSE_REQUEST_H_
