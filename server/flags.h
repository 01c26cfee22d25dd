// A table of flags: one entry gives the command line's --name, the environment's LSSAR_NAME and the
// configuration file's key, with one parser and one error sentence for all three.
#ifndef LSSAR_SERVER_FLAGS_H_
#define LSSAR_SERVER_FLAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lssar {

// Takes the value as text. An error says what the value must be: "it must be in [1, 64]".
using AssignFlag = std::function<absl::Status(const std::string& value)>;

struct Flag {
  std::string name;        // "max-model-len"
  std::string group;       // heading in --help
  std::string value_name;  // "TOKENS"
  std::string meaning;     // with unit, default and limit
  AssignFlag assign;
};

AssignFlag AssignText(std::string* target);
AssignFlag AssignInt(int* target, int low, int high);
// "1048576", "512M", "2G": powers of 1024.
AssignFlag AssignBytes(int64_t* target, int64_t low, int64_t high);
// "30s", "1m30s", "250ms"; a plain number is seconds.
AssignFlag AssignDuration(absl::Duration* target, absl::Duration low, absl::Duration high);
// One of `choices`; `choose` gets its index.
AssignFlag AssignChoice(std::vector<std::string> choices, std::function<void(size_t)> choose);

// "max-model-len" -> "LSSAR_MAX_MODEL_LEN".
std::string EnvironmentName(const std::string& flag_name);

// Adds the flags and their environment names; a bad value becomes CLI::ValidationError.
void AddFlags(CLI::App& app, const std::vector<Flag>& flags);

// Gives every flag that neither command line nor environment set its value from a TOML file of
// top-level `name = value` lines. Call after app.parse().
// Errors  NOT_FOUND: cannot be read; INVALID_ARGUMENT: an unknown name (the nearest is named), a
// bad
//         value
absl::Status ApplyConfigFile(const std::string& path, CLI::App& app,
                             const std::vector<Flag>& flags);

// A sentence about what the parser left over: the unknown flag and its nearest known one.
std::string DescribeUnknown(const std::vector<std::string>& left_over,
                            const std::vector<std::string>& known_names);

// The known name that takes the fewest edits; empty: none is near (more than a third of it).
std::string NearestName(const std::string& name, const std::vector<std::string>& known_names);

}  // namespace lssar

#endif  // LSSAR_SERVER_FLAGS_H_
