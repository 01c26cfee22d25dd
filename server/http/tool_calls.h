// Calls of functions in a chat: OpenAI's tools and tool_choice, and tool_calls in messages and
// replies.
//
// A call is forced or there is none: no model decides here whether to call a function. The call is
// a constraint of the text, and the functions are described in the chat's first message, so that
// every model with a chat template can be asked for one.
#ifndef LSSAR_SERVER_HTTP_TOOL_CALLS_H_
#define LSSAR_SERVER_HTTP_TOOL_CALLS_H_

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "server/http/body_fields.h"
#include "server/http/constraint_fields.h"

namespace lssar {

inline constexpr size_t kMaxTools = 128;  // OpenAI's
inline constexpr size_t kMaxFunctionNameBytes = 64;

// The call that a chat must answer with.
struct ForcedCall {
  struct Function {
    size_t position = 0;  // in tools
    std::string name;
    bool has_parameters = false;
    bool has_id = false;  // its parameters have an $id
  };
  std::vector<Function> functions = {};  // one of these is called; empty: there is no call

  bool IsForced() const { return !functions.empty(); }
};

// tools and tool_choice of a body. Where a call is forced, `constraint` becomes that of the call.
// Errors  INVALID_ARGUMENT: of the wrong type, not known or not supported; another constraint is
//         there; the build cannot constrain the output
absl::StatusOr<ForcedCall> ReadForcedCall(const BodyFields& fields, ConstraintField* constraint);

// Constrains `request` to the call and describes its functions in the first message. The text is
// the arguments where there is one function, else {"name": ..., "arguments": ...}.
// `body`: as for KeepSchemaOrder
// Errors  INVALID_ARGUMENT: the functions have more bytes than a constraint may have
absl::Status ForceCall(std::string_view body, const ForcedCall& call, v1::GenerateRequest* request);

// Calls and their results among the messages of a chat, in the order of these.
class ToolMessages {
 public:
  // What the model reads of the calls of an assistant's message: one in a line. `field`: the name
  // of tool_calls in errors.
  absl::StatusOr<std::string> ReadCalls(const std::string& field, const nlohmann::json& calls);
  // What the model reads of a message with a result, which is a user's to its template.
  absl::StatusOr<std::string> ReadResult(const BodyFields& message, const std::string& content);

 private:
  std::map<std::string, std::string> names_;  // of the functions, by the id of their call
};

// The text of a forced call, taken apart as it comes.
class ToolCallText {
 public:
  ToolCallText() = default;
  explicit ToolCallText(const ForcedCall& call);

  void Add(std::string_view text);
  // Nothing follows. `is_whole`: the text fits its constraint.
  void End(bool is_whole);

  // Empty: it is not known yet, and Text is what there is.
  const std::string& Name() const { return name_; }
  const std::string& Text() const { return text_; }
  // What has come of the arguments since the last time.
  std::string TakeArguments();

 private:
  std::string name_;
  bool has_frame_ = false;  // {"name": ..., "arguments": ...} is around the arguments
  bool has_begun_ = false;  // something was taken
  bool has_ended_ = false;
  std::string text_;  // not taken yet
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_TOOL_CALLS_H_
