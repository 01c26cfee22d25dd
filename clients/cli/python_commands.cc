// `lssar figure`, `kl`, `ruler`, `run-batch`, `import`, `quantize`, `export` and `verify`: programs
// of the Python package. They parse their arguments and print their help themselves.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "clients/cli/command.h"
#include "clients/cli/figure.h"
#include "clients/cli/python_program.h"

namespace lssar::cli {
namespace {

constexpr PythonProgram kCheckpointProgram = {
    .script = "lssar-checkpoint", .module = "lssar.checkpoints.command", .extra = "import"};

constexpr PythonProgram kKlProgram = {
    .script = "lssar-kl", .module = "lssar.kl", .extra = "import"};
constexpr PythonProgram kRunBatchProgram = {
    .script = "lssar-run-batch", .module = "lssar.run_batch", .extra = ""};
constexpr PythonProgram kRulerProgram = {
    .script = "lssar-ruler", .module = "lssar.ruler", .extra = "ruler"};

// The lssar-server beside this program, for the Python programs that start one.
void NameServer() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  const std::filesystem::path server = self.parent_path() / "lssar-server";
  if (access(server.c_str(), X_OK) != 0) return;
  setenv("LSSAR_SERVER", server.c_str(), /*overwrite=*/0);
}

class PythonCommand : public Command {
 public:
  // `has_commands`: the program takes the command's name as its first argument.
  PythonCommand(const PythonProgram& program, bool has_commands)
      : program_(program), has_commands_(has_commands) {}

  void AddFlags(ArgumentParser* parser) override {
    parser->TakeAll();
    parser_ = *parser;
  }

  absl::Status Run() override {
    std::vector<std::string> arguments = parser_.Taken();
    if (has_commands_) arguments.insert(arguments.begin(), parser_.Command());
    NameServer();
    return ExecPythonProgram(program_, std::move(arguments));
  }

 private:
  const PythonProgram& program_;
  const bool has_commands_;
  ArgumentParser parser_{nullptr};
};

}  // namespace

std::unique_ptr<Command> MakeCheckpointCommand() {
  return std::make_unique<PythonCommand>(kCheckpointProgram, /*has_commands=*/true);
}

std::unique_ptr<Command> MakeFigureCommand() {
  return std::make_unique<PythonCommand>(kFigureProgram, /*has_commands=*/false);
}

std::unique_ptr<Command> MakeKlCommand() {
  return std::make_unique<PythonCommand>(kKlProgram, /*has_commands=*/false);
}

std::unique_ptr<Command> MakeRunBatchCommand() {
  return std::make_unique<PythonCommand>(kRunBatchProgram, /*has_commands=*/false);
}

std::unique_ptr<Command> MakeRulerCommand() {
  return std::make_unique<PythonCommand>(kRulerProgram, /*has_commands=*/false);
}

}  // namespace lssar::cli
