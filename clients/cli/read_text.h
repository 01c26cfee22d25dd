// Whole files and standard input as text.
#ifndef LSSAR_CLIENTS_CLI_READ_TEXT_H_
#define LSSAR_CLIENTS_CLI_READ_TEXT_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace lssar::cli {

// All bytes of the file; "-" is standard input.
// Errors  NOT_FOUND: it cannot be opened; INTERNAL: reading failed (a directory, too)
absl::StatusOr<std::string> ReadText(const std::string& path);

// The prompt of a command, as its argument ("-": standard input) or from a file.
// Errors  INVALID_ARGUMENT: none of the two, or both; those of ReadText
absl::StatusOr<std::string> ReadPrompt(const std::optional<std::string>& argument,
                                       const std::optional<std::string>& path);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_READ_TEXT_H_
