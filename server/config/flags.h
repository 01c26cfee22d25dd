// A table of flags. One entry defines the flag --name, the environment variable LSSAR_NAME and the
// key of the configuration file, with one parser and one error message for all three.
#ifndef LSSAR_SERVER_CONFIG_FLAGS_H_
#define LSSAR_SERVER_CONFIG_FLAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/limits.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace lssar {

// Parses and stores a value. The error says what the value must be: "it must be in [1, 64]".
using AssignFlag = std::function<absl::Status(const std::string& value)>;

struct Flag {
  std::string name;        // "max-model-len"
  std::string group;       // heading in --help
  std::string value_name;  // "TOKENS"
  std::string help;        // with unit, range and default
  AssignFlag assign;
  // A switch: --name and --no-name take no value; the variable and the key take true or false.
  bool is_switch = false;
};

// CLI11's message, but for a flag that is given twice.
std::string DescribeError(const CLI::ParseError& error);

AssignFlag AssignText(std::string* target);
template <typename Int>
AssignFlag AssignInt(Int* target, limits::Range<Int> range);
// A number that is not negative: "16384", "16K", "16k".
template <typename Int>
AssignFlag AssignTokens(Int* target, limits::Range<Int> range);
// "true" or "false".
AssignFlag AssignBool(bool* target);
// "1048576", "512M", "2G": powers of 1024.
AssignFlag AssignBytes(int64_t* target, limits::Range<int64_t> range);
// "30s", "1m30s", "250ms"; a plain number is seconds.
AssignFlag AssignDuration(absl::Duration* target, absl::Duration low, absl::Duration high);
// One of `choices`; calls `choose` with its index.
AssignFlag AssignChoice(std::vector<std::string> choices, std::function<void(size_t)> choose);

// "max-model-len" -> "LSSAR_MAX_MODEL_LEN".
std::string EnvironmentName(const std::string& flag_name);

// Adds the flags and their environment variables. A bad value throws CLI::ConversionError.
void AddFlags(CLI::App& app, const std::vector<Flag>& flags);

// Sets the flags that neither the command line nor the environment has set, from a TOML file of
// top-level `name = value` lines, and returns their names. Call after app.parse().
// Errors  those of ReadWholeFile
//         INVALID_ARGUMENT: not TOML, an unknown name (the message suggests the nearest one) or a
//         bad value
absl::StatusOr<std::vector<std::string>> ApplyConfigFile(const std::string& path, CLI::App& app,
                                                         const std::vector<Flag>& flags);

// A flag that has no effect without something else.
struct FlagNeed {
  std::string name;   // "otlp-sample"
  bool is_met;        // it is there, or the flag's value asks for nothing
  std::string needs;  // "--otlp-endpoint URL", behind "needs"
  // A variable of the environment may set it in vain: it is for every server there, and some have
  // no port.
  bool allows_variable = false;
};

// Who has set a flag.
enum class FlagSource : uint8_t { kNobody, kVariable, kLineOrFile };

// Errors  INVALID_ARGUMENT: a flag that somebody has set, as `source_of` says, has no effect
absl::Status CheckNeeds(const std::vector<FlagNeed>& needs,
                        const std::function<FlagSource(const std::string& name)>& source_of);

// Describes the arguments that the parser did not recognise; suggests the nearest known flag.
std::string DescribeUnknown(const std::vector<std::string>& left_over,
                            const std::vector<std::string>& known_names);

// The known name with the smallest edit distance; empty if that exceeds about a third of its
// length.
std::string NearestName(const std::string& name, const std::vector<std::string>& known_names);

}  // namespace lssar

#endif  // LSSAR_SERVER_CONFIG_FLAGS_H_
