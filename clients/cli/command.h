// A subcommand of `lssar`.
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

  // Adds the flags, grouped by task, and two examples at the end of the help. The command stores
  // the values and must outlive `app`.
  virtual void AddFlags(CLI::App* app) = 0;

  // Runs after the flags are parsed. Results go to stdout, everything else to stderr.
  // Errors  INVALID_ARGUMENT: wrong usage, by this program or by the server (exit code 2); others:
  //         failure (exit code 1)
  virtual absl::Status Run() = 0;
};

// One per *_command.cc file; main.cc lists them.
std::unique_ptr<Command> MakeAttentionCommand();
std::unique_ptr<Command> MakeBenchCommand();
std::unique_ptr<Command> MakeChatCommand();
std::unique_ptr<Command> MakeEmbedCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeFigureCommand();
std::unique_ptr<Command> MakeImportCommand();
std::unique_ptr<Command> MakeInfoCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakePasskeyCommand();
std::unique_ptr<Command> MakePerplexityCommand();
std::unique_ptr<Command> MakeQuantizeCommand();
std::unique_ptr<Command> MakeScoreCommand();
std::unique_ptr<Command> MakeSweepCommand();
std::unique_ptr<Command> MakeVerifyCommand();

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_COMMAND_H_
