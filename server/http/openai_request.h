// Bodies of /v1/completions, /v1/chat/completions, /v1/score, /v1/embeddings and /v1/attention as
// lssar.v1 messages.
//
// Which fields a body may have is in request_fields.h.
#ifndef LSSAR_SERVER_HTTP_OPENAI_REQUEST_H_
#define LSSAR_SERVER_HTTP_OPENAI_REQUEST_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "models/checkpoint.h"
#include "server/api/parse_request.h"

namespace lssar {

struct CompletionRequest {
  bool is_chat = false;
  std::vector<v1::GenerateRequest> prompts;  // >= 1
  int max_tokens = 0;                        // 0: nothing is generated
  bool has_max_tokens = false;  // else it is a default, cut to what the context has left
  bool echo = false;
  int num_logprobs = -1;         // -1: none; N: the token's own, and the N best
  int num_prompt_logprobs = -1;  // vLLM's field of that name
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;    // each event tells the usage so far
  bool tokens_as_ids = false;       // return_tokens_as_token_ids: "token_id:17" in place of text
  std::vector<bool> has_added_bos;  // of each prompt, after AddBosForLmEval
};

// Errors  INVALID_ARGUMENT: a field of the wrong type or out of range, or not supported
//         NOT_FOUND: another model
//         CANCELLED: ParseContext::should_stop returned true
absl::StatusOr<CompletionRequest> ReadCompletion(const nlohmann::json& body,
                                                 const ParseContext& context);
// lm-evaluation-harness tokenizes with add_special_tokens false and sends ids without BOS. Puts BOS
// before them where the checkpoint asks for it and the context has room for it: what fills the
// context was cut on the left, or continues a text. An empty prompt becomes BOS, or EOS where there
// is no BOS. A request for the log-probabilities of a prompt has max_tokens 1 in lm-eval, which
// does not read that token: it becomes 0, so that a prompt may fill the context.
void AddBosForLmEval(const ParseContext& context, CompletionRequest* request);
absl::StatusOr<CompletionRequest> ReadChatCompletion(const nlohmann::json& body,
                                                     const Checkpoint& checkpoint);
absl::StatusOr<v1::ScoreRequest> ReadScore(const nlohmann::json& body,
                                           const Checkpoint& checkpoint);

struct EmbeddingRequest {
  v1::EmbedRequest message;
  bool is_base64 = false;  // encoding_format
};
absl::StatusOr<EmbeddingRequest> ReadEmbedding(const nlohmann::json& body,
                                               const Checkpoint& checkpoint);

struct AttentionRequest {
  v1::CaptureAttentionRequest message;
  bool stream = false;
};
absl::StatusOr<AttentionRequest> ReadAttention(const nlohmann::json& body,
                                               const Checkpoint& checkpoint);

// `messages` of a chat.
absl::StatusOr<v1::Chat> ReadChatMessages(const nlohmann::json& messages);

// The field `model`, where there is one, names this checkpoint. Errors  NOT_FOUND
absl::Status CheckModelName(const nlohmann::json& body, const Checkpoint& checkpoint);

// An error of parse_request.h in the names that the HTTP API has for the fields: "sampling.top_p is
// 2; ..." becomes "top_p is 2; ...". `prompt_field`: what the text or the token ids came from.
absl::Status WithHttpNames(const absl::Status& status, const std::string& prompt_field);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_OPENAI_REQUEST_H_
