// A subcommand of `lssar`.
#ifndef LSSAR_CLIENTS_CLI_COMMAND_H_
#define LSSAR_CLIENTS_CLI_COMMAND_H_

#include <memory>

#include "absl/status/status.h"
#include "clients/cli/argument_parser.h"

namespace lssar::cli {

class Command {
 public:
  virtual ~Command() = default;

  // Adds the flags, grouped by task, and two examples at the end of the help. The command stores
  // the values and must outlive the parsing.
  virtual void AddFlags(ArgumentParser* parser) = 0;

  // Runs after the flags are parsed. Results go to stdout, everything else to stderr.
  // Errors  INVALID_ARGUMENT: wrong usage, by this program or by the server (exit code 2); others:
  //         failure (exit code 1)
  virtual absl::Status Run() = 0;
};

// main.cc lists them.
std::unique_ptr<Command> MakeAttentionCommand();
std::unique_ptr<Command> MakeBenchCommand();
std::unique_ptr<Command> MakeChatCommand();
std::unique_ptr<Command> MakeCheckpointCommand();  // import, quantize, export, verify
std::unique_ptr<Command> MakeEmbedCommand();
std::unique_ptr<Command> MakeFigureCommand();
std::unique_ptr<Command> MakeKlCommand();
std::unique_ptr<Command> MakeRunBatchCommand();
std::unique_ptr<Command> MakeInfoCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakePasskeyCommand();
std::unique_ptr<Command> MakePerplexityCommand();
std::unique_ptr<Command> MakeRulerCommand();
std::unique_ptr<Command> MakeScoreCommand();
std::unique_ptr<Command> MakeSweepCommand();

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_COMMAND_H_
