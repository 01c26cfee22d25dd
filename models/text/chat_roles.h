// Chat role tables (chat_roles.json, README.md): what a chat template writes, as plain strings.
#ifndef LSSAR_MODELS_TEXT_CHAT_ROLES_H_
#define LSSAR_MODELS_TEXT_CHAT_ROLES_H_

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/text/chat_message.h"

namespace lssar {

// Limits of stop_strings here and in tokenizer_config.json: those of a request.
inline constexpr size_t kMaxChatStops = 16;
inline constexpr size_t kMaxChatStopBytes = 256;

// CANCELLED: what Render returns where should_stop returned true.
absl::Status RenderingStopped();

// Const after Parse and safe from any thread.
class ChatRoles {
 public:
  // `json`: the text of a chat_roles.json; `source`, its path, starts every error.
  // `template_sha256`: 64 hex digits, of the template that the table must stand for.
  // Errors  INVALID_ARGUMENT: not a table of version 1 (names the field), or of another template
  static absl::StatusOr<ChatRoles> Parse(std::string_view json, const std::string& source,
                                         std::string_view template_sha256);

  // Errors  INVALID_ARGUMENT: an order of roles that the table does not allow (names the message),
  //         or a prompt of more than kMaxPromptBytes
  //         CANCELLED: should_stop returned true, which is asked for each message and every 4 KiB
  //         of one where drop_through is looked for
  absl::StatusOr<std::string> Render(
      std::span<const ChatMessage> messages, bool add_generation_prompt,
      absl::FunctionRef<bool()> should_stop = [] { return false; }) const;

  const std::vector<std::string>& StopStrings() const { return stop_strings_; }

 private:
  friend class ChatRolesReader;

  enum class Strip : uint8_t { kNone, kWhitespace, kNewlines };
  // Writes a content as prefix + stripped content + suffix.
  struct Row {
    std::string prefix, suffix;
    Strip left = Strip::kNone, right = Strip::kNone;
    std::string drop_through;  // empty: nothing is dropped
    Strip dropped = Strip::kNone;

    // nullopt: should_stop returned true.
    std::optional<std::string_view> StripContent(std::string_view content,
                                                 absl::FunctionRef<bool()> should_stop) const;
  };
  enum class Placement : uint8_t { kOwn, kFirstUser, kLastUser };
  using Rows = std::map<std::string, Row, std::less<>>;  // by role
  using Roles = std::vector<std::string>;

  std::string start_, no_system_, generation_prompt_, end_;
  Rows rows_, last_rows_;
  Placement system_placement_ = Placement::kOwn;
  std::optional<Row> system_user_;
  std::map<std::string, Roles, std::less<>> next_;
  Roles generate_after_, end_after_;
  std::vector<std::string> stop_strings_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_CHAT_ROLES_H_
