// Which fields the JSON bodies of requests may have: one table of the fields of OpenAI, vLLM,
// SGLang, llama.cpp and this server. No field that changes an answer elsewhere is ignored.
#ifndef LSSAR_SERVER_HTTP_REQUEST_FIELDS_H_
#define LSSAR_SERVER_HTTP_REQUEST_FIELDS_H_

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "server/http/body_fields.h"

namespace lssar {

// Kinds of bodies, and of objects within them. A set is a sum.
using BodyKinds = unsigned;
inline constexpr BodyKinds kCompletionBody = 1 << 0;  // also /lm_eval/v1/completions
inline constexpr BodyKinds kChatBody = 1 << 1;
inline constexpr BodyKinds kScoreBody = 1 << 2;
inline constexpr BodyKinds kEmbeddingBody = 1 << 3;
inline constexpr BodyKinds kAttentionBody = 1 << 4;
inline constexpr BodyKinds kTokenizeBody = 1 << 5;
inline constexpr BodyKinds kDetokenizeBody = 1 << 6;
inline constexpr BodyKinds kMessage = 1 << 7;      // messages[i]
inline constexpr BodyKinds kContentPart = 1 << 8;  // messages[i].content[i]
inline constexpr BodyKinds kScoreItem = 1 << 9;    // items[i]
inline constexpr BodyKinds kStreamOptions = 1 << 10;
inline constexpr BodyKinds kResponsesBody = 1 << 11;
inline constexpr BodyKinds kMessagesBody = 1 << 12;      // also /v1/messages/count_tokens
inline constexpr BodyKinds kInputItem = 1 << 13;         // input[i] of /v1/responses
inline constexpr BodyKinds kTextConfig = 1 << 14;        // text of /v1/responses
inline constexpr BodyKinds kBatchBody = 1 << 15;         // POST /v1/batches
inline constexpr BodyKinds kTool = 1 << 16;              // tools[i] of a chat, and tool_choice
inline constexpr BodyKinds kFunction = 1 << 17;          // tools[i].function
inline constexpr BodyKinds kChosenFunction = 1 << 18;    // tool_choice.function
inline constexpr BodyKinds kToolCall = 1 << 19;          // messages[i].tool_calls[i]
inline constexpr BodyKinds kCalledFunction = 1 << 20;    // messages[i].tool_calls[i].function
inline constexpr BodyKinds kResponsesTool = 1 << 21;     // tools[i] of /v1/responses
inline constexpr BodyKinds kResponsesChoice = 1 << 22;   // tool_choice of /v1/responses
inline constexpr BodyKinds kCallItem = 1 << 23;          // input[i], a function_call
inline constexpr BodyKinds kOutputItem = 1 << 24;        // input[i], a function_call_output
inline constexpr BodyKinds kMessagesTool = 1 << 25;      // tools[i] of /v1/messages
inline constexpr BodyKinds kMessagesChoice = 1 << 26;    // tool_choice of /v1/messages
inline constexpr BodyKinds kToolUse = 1 << 27;           // messages[i].content[i] of /v1/messages
inline constexpr BodyKinds kToolResult = 1 << 28;        // messages[i].content[i] of /v1/messages
inline constexpr BodyKinds kAnthropicMessage = 1 << 29;  // messages[i] of /v1/messages
inline constexpr BodyKinds kAnyBody = ((1 << 7) - 1) | kResponsesBody | kMessagesBody;

struct RequestField {
  enum class Verdict {
    kServed,    // read, with a check of its value
    kHarmless,  // ignored: it changes no answer
    kRefused,   // unless its value is one of `neutral`
  };
  BodyKinds kinds = 0;
  std::string_view name;
  Verdict verdict = Verdict::kServed;
  std::string_view reason = {};   // of a refusal
  std::string_view neutral = {};  // a JSON list: values that change nothing
};

// Every row. A name has at most one for each kind of body.
std::span<const RequestField> RequestFields();

// Each field of `object`, which is one of `kind`, is served, harmless, neutral or null.
// Errors  INVALID_ARGUMENT: names the first that is not, its value and the reason, or the known
//         field whose name is nearest to it
absl::Status CheckFields(BodyKinds kind, const BodyFields& object);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_REQUEST_FIELDS_H_
