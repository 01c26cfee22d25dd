// What a command reads: files, standard input, prompts, token ids.
#ifndef LSSAR_CLIENTS_CLI_INPUT_H_
#define LSSAR_CLIENTS_CLI_INPUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

class ArgumentParser;

// All bytes of the file; "-" is standard input.
// Errors  NOT_FOUND: it cannot be opened; INTERNAL: reading failed (it is a directory, for example)
absl::StatusOr<std::string> ReadText(const std::string& path);

// Errors  by errno: it cannot be written, or not wholly
absl::Status WriteText(const std::string& path, const std::string& text);

// Token ids: a list such as "2,17,300", or the path of a file of little-endian uint16 ids without a
// header ("-" is standard input). What consists of digits, commas and spaces is a list, and so is
// what begins with a digit or has a comma where no such file can be opened.
// Errors  those of ReadText; INVALID_ARGUMENT: an id that is no int32, an empty entry, a file with
//         an odd number of bytes
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const std::string& list_or_path);

// The prompt of a command: an argument, a file or token ids.
struct PromptFlags {
  std::optional<std::string> text;  // "-": standard input
  std::optional<std::string> file;
  std::optional<std::string> ids;  // as ReadTokenIds takes them
  std::optional<int> length;       // the first `length` ids only
};

void AddPromptFlags(ArgumentParser* parser, PromptFlags* flags);

// Exactly one of the two is set in the result.
struct Prompt {
  std::optional<std::string> text;
  std::optional<std::vector<int32_t>> ids;
};

// One newline at the end of a file or of standard input is removed.
// Errors  INVALID_ARGUMENT: no prompt or more than one, --length without --ids; those of ReadText
//         and ReadTokenIds
absl::StatusOr<Prompt> ReadPrompt(const PromptFlags& flags);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_INPUT_H_
