// Functions that an answer may call or must call: tools and tool_choice of OpenAI's chats and
// responses and of Anthropic's messages.
//
// A call is a constraint of the text, and the functions are described in the chat's first message,
// so that every model with a chat template can be asked for one. Where the model may answer with a
// text, too, it decides by its first character: a call begins with "{", and a text does not.
#ifndef LSSAR_SERVER_HTTP_TOOL_CALLS_H_
#define LSSAR_SERVER_HTTP_TOOL_CALLS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "server/http/body_fields.h"
#include "server/http/constraint_fields.h"

namespace lssar {

inline constexpr size_t kMaxTools = 128;  // OpenAI's
inline constexpr size_t kMaxFunctionNameBytes = 64;

// Whose tools and tool_choice a body has.
enum class ToolDialect { kChat, kResponses, kMessages };

// The functions of which an answer calls one.
struct ToolChoice {
  struct Function {
    size_t position = 0;  // in tools
    std::string name;
    bool has_parameters = false;
    bool has_id = false;  // its parameters have an $id
  };
  ToolDialect dialect = ToolDialect::kChat;
  std::vector<Function> functions = {};  // empty: the answer is a text
  bool allows_text = false;              // or the answer is a text

  bool MayCall() const { return !functions.empty(); }
};

// tools and tool_choice of a body. Where a function may be called, `constraint` becomes that of the
// call.
// Errors  INVALID_ARGUMENT: of the wrong type, not known or not supported; another constraint is
//         there; the build cannot constrain the output
absl::StatusOr<ToolChoice> ReadToolChoice(const BodyFields& fields, ToolDialect dialect,
                                          ConstraintField* constraint);

// Constrains `request` to what `choice` allows, and describes its functions in the first message.
// Without functions nothing changes. The text of a call is the arguments where the answer must call
// the only function, else {"name": ..., "arguments": ...}.
// `body`: as for KeepSchemaOrder
// Errors  INVALID_ARGUMENT: the functions have more bytes than a constraint may have
absl::Status AskForCall(std::string_view body, const ToolChoice& choice,
                        v1::GenerateRequest* request);

// A call as the model writes it, and reads it in earlier messages.
std::string CallText(std::string_view name, std::string_view arguments);

// An answer, taken apart as it comes: a text, or a call.
class TextOrCall {
 public:
  TextOrCall() = default;  // a text
  explicit TextOrCall(const ToolChoice& choice);

  void Add(const v1::Delta& delta);

  // False: it is a call, or not known yet.
  bool IsText() const { return state_ == State::kText; }
  // The name of the called function is known.
  bool IsCall() const { return state_ == State::kArguments; }
  // A call that has come to its end and fits the function's parameters.
  bool IsWholeCall() const { return IsCall() && is_whole_; }

  const std::string& Name() const { return name_; }
  // What has come of the text since the last time; empty: it is none.
  std::string TakeText();
  // What has come of the arguments since the last time; empty: it is no call.
  std::string TakeArguments();

 private:
  enum class State {
    kText,
    kUnknown,    // white space
    kFrame,      // of a call whose name is not known yet
    kArguments,  // of the function `name_`
  };
  void FindStart();
  void FindName();
  void End(v1::FinishReason finish);
  // How many bytes of `rest_` are the arguments'.
  size_t FindEnd();

  State state_ = State::kText;
  bool has_frame_ = false;  // {"name": ..., "arguments": ...} is around the arguments
  bool has_begun_ = false;  // some of the arguments were taken
  bool has_ended_ = false;  // all of them were
  // At the end of those that were taken: objects and lists that are open, and their string.
  int depth_ = 0;
  bool is_in_string_ = false, is_escaped_ = false;
  bool is_whole_ = false;
  std::string name_;
  std::string rest_;  // not taken yet
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_TOOL_CALLS_H_
