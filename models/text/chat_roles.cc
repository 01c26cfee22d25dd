#include "models/text/chat_roles.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/json_fields.h"
#include "models/text/added_tokens.h"
#include "models/text/white_space.h"

namespace lssar {

using nlohmann::json;

absl::Status RenderingStopped() { return absl::CancelledError("the rendering was stopped"); }

// Keeps the first error.
class ChatRolesReader {
 public:
  ChatRolesReader(const json& object, std::string source)
      : object_(object), source_(std::move(source)), fields_(object, source_) {}

  absl::StatusOr<ChatRoles> Read(std::string_view template_sha256) {
    fields_.RejectOthers({"version", "template_sha256", "start", "no_system", "system", "user",
                          "assistant", "last", "generation_prompt", "end", "next", "generate_after",
                          "end_after", "stop_strings"});
    fields_.Int("version", 1, 1);
    const std::string sha256 = fields_.Text("template_sha256");
    RETURN_IF_ERROR(fields_.status());
    if (sha256 != template_sha256) {
      fields_.Fail(
          "is not the table of the chat template beside it (template_sha256 differs): run `lssar "
          "import` again, or remove one of the two");
    }
    table_.start_ = fields_.Text("start");
    table_.no_system_ = fields_.Text("no_system");
    table_.generation_prompt_ = fields_.Text("generation_prompt");
    table_.end_ = fields_.Text("end");
    for (const std::string role : {"user", "system", "assistant"}) {
      const json* const row = fields_.Object(role);
      if (row != nullptr) table_.rows_[role] = ReadRow(*row, role, role == "system");
      if (row == nullptr && role == "user") fields_.Fail("user is missing");
    }
    if (const json* const last = fields_.Object("last")) {
      for (const auto& [role, row] : last->items()) {
        if (CheckRole(role, "last")) table_.last_rows_[role] = ReadRow(row, "last." + role, false);
      }
    }
    if (const json* const next = fields_.Object("next"); next == nullptr) {
      fields_.Fail("next is missing");
    } else {
      for (const auto& [role, roles] : next->items()) {
        if (role.empty() || CheckRole(role, "next")) {
          table_.next_[role] = ReadRoles(roles, StrCat("next.", role));
        }
      }
    }
    for (const auto& [name, roles] : {std::pair{"generate_after", &table_.generate_after_},
                                      std::pair{"end_after", &table_.end_after_}}) {
      const json* const list = fields_.Array(name);
      if (list == nullptr) fields_.Fail(StrCat(name, " is missing"));
      if (list != nullptr) *roles = ReadRoles(*list, name);
    }
    table_.stop_strings_ = fields_.Texts("stop_strings", kMaxChatStops, kMaxChatStopBytes);
    RETURN_IF_ERROR(fields_.status());
    return std::move(table_);
  }

 private:
  // Every role that is allowed somewhere has a row.
  bool CheckRole(const std::string& role, std::string_view where) {
    if (table_.rows_.contains(role)) return true;
    fields_.Fail(StrCat(where, " names the role \"", ShortName(role), "\", which has no row"));
    return false;
  }

  ChatRoles::Roles ReadRoles(const json& list, std::string_view where) {
    ChatRoles::Roles roles;
    if (!list.is_array()) fields_.Fail(StrCat(where, " must be an array of roles"));
    for (const json& role : list.is_array() ? list : json::array()) {
      if (!role.is_string()) fields_.Fail(StrCat(where, " must be an array of roles"));
      if (!role.is_string() || !CheckRole(role.get<std::string>(), where)) continue;
      // Once each, so that no list is long.
      if (std::ranges::count(roles, role.get<std::string>()) == 0) {
        roles.push_back(role.get<std::string>());
      }
    }
    return roles;
  }

  ChatRoles::Strip ReadStrip(std::string_view name, JsonFields* fields) {
    return ChatRoles::Strip(fields->Choice(name, {"none", "whitespace", "newlines"}));
  }

  ChatRoles::Row ReadRow(const json& object, const std::string& where, bool is_system) {
    JsonFields fields(object, StrCat(source_, ": ", where));
    if (is_system) {
      fields.RejectOthers({"prefix", "suffix", "strip_left", "strip_right", "drop_through",
                           "strip_dropped", "placement", "user"});
    } else {
      fields.RejectOthers(
          {"prefix", "suffix", "strip_left", "strip_right", "drop_through", "strip_dropped"});
    }
    ChatRoles::Row row{.prefix = fields.Text("prefix"),
                       .suffix = fields.Text("suffix"),
                       .left = ReadStrip("strip_left", &fields),
                       .right = ReadStrip("strip_right", &fields),
                       .drop_through = fields.Text("drop_through", ""),
                       .dropped = ReadStrip("strip_dropped", &fields)};
    if (fields.Has("drop_through") && row.drop_through.empty())
      fields.Fail("drop_through is empty");
    if (row.drop_through.size() > kMaxTokenBytes) {
      fields.Fail(StrCat("drop_through has ", row.drop_through.size(), " bytes, must have at most ",
                         kMaxTokenBytes));
    }
    if (is_system) {
      if (!fields.Has("placement")) fields.Fail("placement is missing");
      table_.system_placement_ =
          ChatRoles::Placement(fields.Choice("placement", {"own", "first_user", "last_user"}));
      if (const json* const user = fields.Object("user")) {
        table_.system_user_ = ReadRow(*user, where + ".user", false);
      }
    }
    if (!fields.status().ok()) Keep(fields.status());
    return row;
  }

  void Keep(const absl::Status& status) {
    std::string_view message(status.message().data(), status.message().size());
    if (message.starts_with(source_)) message.remove_prefix(source_.size() + 2);
    fields_.Fail(message);
  }

  const json& object_;
  const std::string source_;
  JsonFields fields_;
  ChatRoles table_;
};

absl::StatusOr<ChatRoles> ChatRoles::Parse(std::string_view text, const std::string& source,
                                           std::string_view template_sha256) {
  ASSIGN_OR_RETURN(const json parsed, ParseJson(text, source));
  return ChatRolesReader(parsed, source).Read(template_sha256);
}

namespace {

// Where the last `part` in `text` begins; npos: there is none. nullopt: should_stop returned true.
std::optional<size_t> FindLast(std::string_view text, std::string_view part,
                               absl::FunctionRef<bool()> should_stop) {
  constexpr size_t kBytesPerPoll = 4096;
  for (size_t end = text.size(); end > 0;) {
    if (should_stop()) return std::nullopt;
    const size_t begin = end - std::min(end, kBytesPerPoll);
    const size_t found = text.substr(begin, end - begin + part.size() - 1).rfind(part);
    if (found != text.npos) return begin + found;
    end = begin;
  }
  return text.npos;
}

}  // namespace

std::optional<std::string_view> ChatRoles::Row::StripContent(
    std::string_view content, absl::FunctionRef<bool()> should_stop) const {
  const auto strip_left = [&](Strip strip) {
    if (strip == Strip::kWhitespace) content = TrimLeft(content);
    if (strip == Strip::kNewlines) {
      content.remove_prefix(std::min(content.find_first_not_of('\n'), content.size()));
    }
  };
  if (!drop_through.empty()) {
    const std::optional<size_t> dropped_at = FindLast(content, drop_through, should_stop);
    if (!dropped_at) return std::nullopt;
    if (*dropped_at != content.npos) {
      content.remove_prefix(*dropped_at + drop_through.size());
      strip_left(dropped);
    }
  }
  strip_left(left);
  if (right == Strip::kWhitespace) content = TrimRight(content);
  if (right == Strip::kNewlines) content = content.substr(0, content.find_last_not_of('\n') + 1);
  return content;
}

absl::StatusOr<std::string> ChatRoles::Render(std::span<const ChatMessage> messages,
                                              bool add_generation_prompt,
                                              absl::FunctionRef<bool()> should_stop) const {
  const auto names = [](const Roles& roles) { return roles.empty() ? "none" : StrJoin(roles); };
  const Roles none;
  std::string_view role;  // of the last message
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto found = next_.find(role);
    const Roles& allowed = found == next_.end() ? none : found->second;
    role = messages[i].role;
    if (std::ranges::count(allowed, role) == 0) {
      return absl::InvalidArgumentError(StrCat("messages[", i, "].role is \"", role,
                                               "\"; the chat template allows ", names(allowed),
                                               " there"));
    }
  }
  const Roles& ends = add_generation_prompt ? generate_after_ : end_after_;
  if (std::ranges::count(ends, role) == 0) {
    return absl::InvalidArgumentError(StrCat("the last message is of role \"", role,
                                             "\"; the chat template allows ", names(ends),
                                             " there"));
  }
  const bool has_system = messages.front().role == "system";
  size_t first = 0, merged_at = messages.size();
  std::string text = start_, merged;
  if (!has_system) {
    text += no_system_;
  } else if (system_placement_ != Placement::kOwn) {
    const Row& row = rows_.find("system")->second;
    const auto content = row.StripContent(messages.front().content, should_stop);
    if (!content) return RenderingStopped();
    merged = StrCat(row.prefix, *content, row.suffix);
    first = 1;
    for (size_t i = 1; i < messages.size(); ++i) {
      if (messages[i].role != "user") continue;
      merged_at = i;
      if (system_placement_ == Placement::kFirstUser) break;
    }
  }
  for (size_t i = first; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const auto last = last_rows_.find(message.role);
    const bool is_last = i + 1 == messages.size() && last != last_rows_.end();
    const Row* row = is_last ? &last->second : &rows_.find(message.role)->second;
    if (i == merged_at && system_user_) row = &*system_user_;
    if (should_stop()) return RenderingStopped();
    const auto content = row->StripContent(message.content, should_stop);
    if (!content) return RenderingStopped();
    for (const std::string_view part :
         {std::string_view(row->prefix), i == merged_at ? std::string_view(merged) : "", *content,
          std::string_view(row->suffix)}) {
      if (part.size() > kMaxPromptBytes - text.size()) {
        return absl::InvalidArgumentError(
            StrCat("the prompt is longer than ", kMaxPromptBytes, " bytes"));
      }
      text += part;
    }
  }
  return text + (add_generation_prompt ? generation_prompt_ : end_);
}

}  // namespace lssar
