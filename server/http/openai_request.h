// Bodies of /v1/completions, /v1/chat/completions, /v1/score, /v1/embeddings and /v1/attention as
// lssar.v1 messages. Those of /v1/responses and /v1/messages: answer_request.h.
//
// Which fields a body may have is in request_fields.h.
#ifndef LSSAR_SERVER_HTTP_OPENAI_REQUEST_H_
#define LSSAR_SERVER_HTTP_OPENAI_REQUEST_H_

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "models/checkpoint.h"
#include "server/api/parse_request.h"
#include "server/http/body_fields.h"
#include "server/http/constraint_fields.h"
#include "server/http/field_names.h"
#include "server/http/tool_calls.h"

namespace lssar {

class LoadedModel;

struct CompletionRequest {
  bool is_chat = false;
  std::vector<v1::GenerateRequest> prompts;     // >= 1
  int max_tokens = 0;                           // 0: nothing is generated
  std::string max_tokens_field = "max_tokens";  // that the client has sent
  bool echo = false;
  int num_logprobs = -1;         // -1: none; N: the token's own, and the N best
  int num_prompt_logprobs = -1;  // vLLM's field of that name
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;    // each event tells the usage so far
  bool tokens_as_ids = false;       // return_tokens_as_token_ids: "token_id:17" in place of text
  std::vector<bool> has_added_bos;  // of each prompt, after AddBosForLmEval
  ConstraintField constraint;
  ToolChoice tools = {};  // of a chat
};

// Errors  INVALID_ARGUMENT: a field of the wrong type or out of range, or not supported
//         CANCELLED: ParseContext::should_stop returned true
absl::StatusOr<CompletionRequest> ReadCompletion(const nlohmann::json& body,
                                                 const ParseContext& context);
// lm-evaluation-harness tokenizes with add_special_tokens false and sends ids without BOS. Puts BOS
// before them where the checkpoint asks for it and the context has room for it: what fills the
// context was cut on the left, or continues a text. An empty prompt becomes BOS, or EOS where there
// is no BOS. A request for the log-probabilities of a prompt has max_tokens 1 in lm-eval, which
// does not read that token: it becomes 0, so that a prompt may fill the context.
void AddBosForLmEval(const ParseContext& context, CompletionRequest* request);
// AskForCall must follow.
absl::StatusOr<CompletionRequest> ReadChatCompletion(const nlohmann::json& body);
absl::StatusOr<v1::ScoreRequest> ReadScore(const nlohmann::json& body);

struct EmbeddingRequest {
  v1::EmbedRequest message;
  bool is_base64 = false;  // encoding_format
  bool is_list = false;    // of inputs
};
absl::StatusOr<EmbeddingRequest> ReadEmbedding(const nlohmann::json& body);

struct AttentionRequest {
  v1::CaptureAttentionRequest message;
  bool stream = false;
};
absl::StatusOr<AttentionRequest> ReadAttention(const nlohmann::json& body);

// `messages` of a chat. Calls of functions and their results become text.
absl::StatusOr<v1::Chat> ReadChatMessages(const nlohmann::json& messages);
// `max_tokens`: of a chat, the value of `field`; nullopt: what the context has left.
absl::Status SetChatTokens(const std::string& field, std::optional<int32_t> max_tokens,
                           CompletionRequest* request, v1::GenerateRequest* shared);
// The fields add_generation_prompt and continue_final_message.
absl::Status ReadChatEnd(const BodyFields& fields, v1::Chat* chat);

// What the requests to generate a text have in common: sampling, stops, limits, stream. The fields
// of the prompt go into `shared`.
absl::Status ReadGenerateFields(const BodyFields& fields, CompletionRequest* request,
                                v1::GenerateRequest* shared);
inline constexpr std::array<std::string_view, 1> kTextParts = {"text"};
// Text, or a list of parts of one of `types`.
absl::StatusOr<std::string> ReadContent(const std::string& field, const nlohmann::json& content,
                                        std::span<const std::string_view> types);
// One of these parts.
absl::StatusOr<std::string> ReadTextPart(const std::string& field, const nlohmann::json& part,
                                         std::span<const std::string_view> types);

// The field `model` of a body; where there is none, the first of the served names.
// Errors  those of LoadedModel::CheckName
absl::StatusOr<std::string> ReadModelName(const nlohmann::json& body, const LoadedModel& served);

// The fields of a GenerateRequest.
FieldNames GenerateNames(const CompletionRequest& request, const std::string& prompt_field);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_OPENAI_REQUEST_H_
