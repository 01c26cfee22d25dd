// Reads TOML files whose values are single texts, numbers or booleans: flags and API keys.
#ifndef LSSAR_SERVER_CONFIG_TOML_FILE_H_
#define LSSAR_SERVER_CONFIG_TOML_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar {

enum class TomlKind : uint8_t { kText, kNumber, kBool, kOther };

struct TomlEntry {
  std::string name;
  TomlKind kind = TomlKind::kText;
  std::string value = {};  // of a text: without quotes; of kOther (array, table, date): empty
};

struct TomlSection {
  std::string name;  // "" for the entries before the first section
  std::vector<TomlEntry> entries;
};

// What an error may contain of the file.
enum class TomlErrors : uint8_t { kQuoteText, kHideText };

// Sections and entries, ordered by name; the entries without a section come first, if there are
// any. A section within a section is an entry of kOther.
// Errors  INVALID_ARGUMENT: not TOML 1.0, a name twice, a line longer than 4096 bytes; names the
//         line
//         RESOURCE_EXHAUSTED: no memory
absl::StatusOr<std::vector<TomlSection>> ParseToml(const std::string& text, TomlErrors errors);

}  // namespace lssar

#endif  // LSSAR_SERVER_CONFIG_TOML_FILE_H_
