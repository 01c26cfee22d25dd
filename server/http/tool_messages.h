// Calls of functions and their results in the messages of a chat, as text that every chat template
// takes.
#ifndef LSSAR_SERVER_HTTP_TOOL_MESSAGES_H_
#define LSSAR_SERVER_HTTP_TOOL_MESSAGES_H_

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/body_fields.h"

namespace lssar {

// Those of one chat, in the order of its messages. A call's text is the assistant's, and a result's
// is the user's.
class ToolMessages {
 public:
  // OpenAI's chats: tool_calls of an assistant's message, one in a line, and a tool's message.
  // `field`: the name of tool_calls in errors.
  absl::StatusOr<std::string> ReadCalls(const std::string& field, const nlohmann::json& calls);
  absl::StatusOr<std::string> ReadResult(const BodyFields& message, const std::string& content);

  // OpenAI's responses: items of type function_call and function_call_output. `output`: its text.
  absl::StatusOr<std::string> ReadCallItem(const BodyFields& item);
  absl::StatusOr<std::string> ReadOutputItem(const BodyFields& item, const std::string& output);

  // Anthropic's messages: parts of type tool_use and tool_result. `content`: its text.
  absl::StatusOr<std::string> ReadUse(const BodyFields& part);
  absl::StatusOr<std::string> ReadUseResult(const BodyFields& part, const std::string& content);

 private:
  // The call with the id that stands in the field `id_field`.
  absl::StatusOr<std::string> Call(const BodyFields& fields, std::string_view id_field,
                                   const BodyFields& function, const std::string& arguments);
  // `what`: "Result"
  absl::StatusOr<std::string> Result(const BodyFields& fields, std::string_view id_field,
                                     std::string_view what, const std::string& content) const;

  std::map<std::string, std::string> names_;  // of the functions, by the id of their call
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_TOOL_MESSAGES_H_
