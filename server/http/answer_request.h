// Bodies of OpenAI's /v1/responses and Anthropic's /v1/messages as lssar.v1 messages: one chat, one
// choice. Which fields a body may have is in request_fields.h.
#ifndef LSSAR_SERVER_HTTP_ANSWER_REQUEST_H_
#define LSSAR_SERVER_HTTP_ANSWER_REQUEST_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "server/http/openai_request.h"

namespace lssar {

struct AnswerRequest {
  CompletionRequest completion;             // of one chat
  std::vector<std::string> stop_sequences;  // /v1/messages: those that the client has sent
  // /v1/responses: what the reply repeats, as JSON.
  std::string instructions = "null", metadata = "{}", max_output_tokens = "null";
  std::string text_format = R"({"type":"text"})";
  std::string tools = "[]", tool_choice = "\"none\"";
};

// Errors  as of openai_request.h
absl::StatusOr<AnswerRequest> ReadResponse(const nlohmann::json& body);
absl::StatusOr<AnswerRequest> ReadMessage(const nlohmann::json& body);

// The body of /v1/messages/count_tokens: that of /v1/messages, which may lack max_tokens.
absl::StatusOr<AnswerRequest> ReadCountedMessage(const nlohmann::json& body);

// GenerateNames of /v1/messages.
FieldNames MessageNames(const CompletionRequest& request);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_ANSWER_REQUEST_H_
