// A subcommand of `lssar`: its flags and what it does.
#ifndef LSSAR_CLIENTS_CLI_COMMAND_H_
#define LSSAR_CLIENTS_CLI_COMMAND_H_

#include <memory>

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lssar::cli {

class Command {
 public:
  virtual ~Command() = default;

  // Adds the flags, grouped by task, and the two examples that end the help. The command holds
  // their values and outlives `app`.
  virtual void AddFlags(CLI::App* app) = 0;

  // Runs after the flags were parsed; the result goes to stdout, everything else to stderr.
  // Errors  INVALID_ARGUMENT: what was asked for makes no sense, here or to the server (exit code
  //         2); anything else: it failed (exit code 1)
  virtual absl::Status Run() = 0;
};

// One for each subcommand, in a file of its own; main.cc lists them by name.
std::unique_ptr<Command> MakeAttentionCommand();
std::unique_ptr<Command> MakeBenchCommand();
std::unique_ptr<Command> MakeChatCommand();
std::unique_ptr<Command> MakeInfoCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakePasskeyCommand();
std::unique_ptr<Command> MakePerplexityCommand();
std::unique_ptr<Command> MakeScoreCommand();

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_COMMAND_H_
