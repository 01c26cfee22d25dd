#include "server/toml_file.h"

#include <stdexcept>

namespace lssar {

// toml++ 3.3 relies on an assertion that a file can violate: `[.a]`. With NDEBUG it would go on
// with undefined behaviour instead.
[[noreturn]] void FailTomlAssertion() { throw std::logic_error("an assertion of toml++"); }

}  // namespace lssar

#undef NDEBUG
#define TOML_ASSERT(expr) (static_cast<bool>(expr) ? void() : ::lssar::FailTomlAssertion())
// Without exceptions its functions are noexcept, and running out of memory would end the process.
#define TOML_EXCEPTIONS 1
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
// Each name of a line may open a table, and tables are destroyed recursively: together with
// kMaxLineBytes this bounds the depth of the stack.
#define TOML_MAX_NESTED_VALUES 4
#include <toml++/toml.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace lssar {
namespace {

constexpr size_t kMaxLineBytes = 4096;

absl::Status CheckLines(std::string_view text) {
  size_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end - begin > kMaxLineBytes) {
      return absl::InvalidArgumentError(
          StrCat("line ", line, " has ", end - begin, " bytes, must have at most ", kMaxLineBytes));
    }
    begin = end + 1;
  }
  return absl::OkStatus();
}

TomlEntry EntryOf(const toml::key& key, const toml::node& node) {
  TomlEntry entry{.name = std::string(key.str()), .kind = TomlKind::kOther};
  if (const auto* text = node.as_string()) {
    entry.kind = TomlKind::kText;
    entry.value = text->get();
  } else if (const auto* integer = node.as_integer()) {
    entry.kind = TomlKind::kNumber;
    entry.value = StrCat(integer->get());
  } else if (const auto* number = node.as_floating_point()) {
    entry.kind = TomlKind::kNumber;
    entry.value = StrCat(number->get());
  } else if (const auto* flag = node.as_boolean()) {
    entry.kind = TomlKind::kBool;
    entry.value = flag->get() ? "true" : "false";
  }
  return entry;
}

absl::StatusOr<std::vector<TomlSection>> Parse(const std::string& text) {
  RETURN_IF_ERROR(CheckLines(text));
  const toml::table parsed = toml::parse(text);
  std::vector<TomlSection> sections(1);
  for (const auto& [key, node] : parsed) {
    const toml::table* const table = node.as_table();
    if (table == nullptr || key.str().empty()) {  // [""] is no section of ours
      sections.front().entries.push_back(EntryOf(key, node));
      continue;
    }
    TomlSection& section = sections.emplace_back();
    section.name = std::string(key.str());
    for (const auto& [name, value] : *table) section.entries.push_back(EntryOf(name, value));
  }
  if (sections.front().entries.empty()) sections.erase(sections.begin());
  return sections;
}

}  // namespace

absl::StatusOr<std::vector<TomlSection>> ParseToml(const std::string& text, TomlErrors errors) {
  try {
    return Parse(text);
  } catch (const toml::parse_error& error) {
    const std::string line = StrCat("line ", error.source().begin.line, " is not valid TOML");
    if (errors == TomlErrors::kHideText) return absl::InvalidArgumentError(line);
    return absl::InvalidArgumentError(StrCat(line, ": ", error.description()));
  } catch (const std::logic_error&) {
    return absl::InvalidArgumentError("the file is not valid TOML");
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError("no memory to parse the file");
  }
}

}  // namespace lssar
