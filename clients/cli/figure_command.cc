// `lssar figure`: draws what other commands printed with --json, by lssar.figures.
#include <CLI/CLI.hpp>
#include <memory>

#include "clients/cli/command.h"
#include "clients/cli/figure.h"
#include "clients/cli/python_program.h"

namespace lssar::cli {
namespace {

class FigureCommand : public Command {
 public:
  void AddFlags(CLI::App* app) override {
    app_ = app;
    app->prefix_command();  // Python parses the arguments
    app->footer(
        "  KIND OUT [NAME=]FILE...     OUT: a file .svg, .png, .pdf or .html\n\n"
        "  attention                   of `attention --json`: weights of every head; one FILE\n"
        "  loss                        of `score --ids --json`: loss by length\n"
        "  passkey                     of `passkey --json`: accuracy by length\n"
        "  positions                   of `perplexity --by-position --json`: loss by position\n"
        "  sweep                       of `sweep --json`: loss by length for each p; one FILE\n"
        "  bench                       of `bench --json`: latencies by load\n\n"
        "Several files are several curves, with NAME or the file's name in the legend. FILE - is\n"
        "standard input. Needs pip install 'lssar[plot]'.\n\n"
        "Examples:\n"
        "  lssar figure loss loss.svg lssar=lssar.json softmax=softmax.json\n"
        "  lssar attention 'The cat sat' --json | lssar figure attention maps.png -");
  }

  absl::Status Run() override { return ExecPythonProgram(kFigureProgram, app_->remaining()); }

 private:
  CLI::App* app_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> MakeFigureCommand() { return std::make_unique<FigureCommand>(); }

}  // namespace lssar::cli
