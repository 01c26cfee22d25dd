// `lssar`: the command-line client.
#include <google/protobuf/stubs/logging.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"
#include "server/config/flags.h"
#include "server/config/options.h"

namespace lssar::cli {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

struct CommandEntry {
  const char* name;
  const char* about;
  std::unique_ptr<Command> (*make)();
};

constexpr CommandEntry kCommands[] = {
    {"generate", "Continue a prompt", MakeGenerateCommand},
    {"chat", "Chat with the model", MakeChatCommand},
    {"score", "Log-probability of continuations; loss by length", MakeScoreCommand},
    {"perplexity", "Perplexity of whole texts of any length", MakePerplexityCommand},
    {"kl", "Distance of two models: KL over the vocabulary, by position", MakeKlCommand},
    {"sweep", "Loss by length for several powers p of the re-weighting", MakeSweepCommand},
    {"passkey", "Passkey retrieval: accuracy by length and depth", MakePasskeyCommand},
    {"ruler", "RULER, unmodified: long-context tasks by length", MakeRulerCommand},
    {"embed", "Embedding vectors: hidden states of texts", MakeEmbedCommand},
    {"attention", "Attention weights of each layer and head", MakeAttentionCommand},
    {"figure", "Figures of what --json printed, several runs in one", MakeFigureCommand},
    {"run-batch", "Answers to a file of requests in OpenAI's batch format", MakeRunBatchCommand},
    {"bench", "Latency and throughput under load", MakeBenchCommand},
    {"info", "Model, limits and statistics of a server", MakeInfoCommand},
    {"import", "Checkpoint of nanoGPT, llm.c or Hugging Face to one of this server",
     MakeCheckpointCommand},
    {"quantize", "Checkpoint with int8 or int4 weights on disk", MakeCheckpointCommand},
    {"export", "Checkpoint for other programs", MakeCheckpointCommand},
    {"verify", "Checkpoint on every device, or a saved request: same bits?", MakeCheckpointCommand},
};

void PrintError(const std::string& message) {
  std::fprintf(stderr, "%s %s\n", Bold(StderrTerminal(), "lssar:").c_str(), message.c_str());
}

std::vector<std::string> CommandNames() {
  std::vector<std::string> names;
  for (const CommandEntry& entry : kCommands) names.emplace_back(entry.name);
  return names;
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    if (option->get_positional()) names.push_back(option->get_name());
  }
  return names;
}

// The error about the first argument that was not parsed. `command`: nullptr if none was given.
std::string ExplainLeftover(const CLI::App& root, const CLI::App* command) {
  const CLI::App& app = command != nullptr ? *command : root;
  const std::vector<std::string> leftovers = root.remaining(true);
  for (const std::string& word : leftovers) {
    if (word.size() > 1 && word.starts_with('-')) {
      const std::string name = word.substr(0, word.find('='));
      return StrCat("unknown flag ", name, SuggestFlag(name, FlagNames(app)));
    }
  }
  if (command == nullptr) {
    // The package's own `lssar` has this command; it starts the server.
    if (leftovers[0] == "serve") {
      return "unknown command 'serve'; start the server: lssar-server --model DIR";
    }
    const std::string nearest = NearestMatch(leftovers[0], CommandNames());
    return StrCat("unknown command '", leftovers[0], "'",
                  nearest.empty() ? "" : StrCat("; did you mean '", nearest, "'?"));
  }
  return StrCat("unexpected argument '", leftovers[0], "'; quote text that has spaces");
}

// The arguments without the program's name. `help` becomes `--help`, and `help COMMAND` becomes
// `COMMAND --help`.
std::vector<std::string> ReadArguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty() || arguments[0] != "help") return arguments;
  if (arguments.size() == 1 || arguments[1] == "help") return {"--help"};
  const std::vector<std::string> names = CommandNames();
  if (std::ranges::find(names, arguments[1]) == names.end()) return {arguments[1]};
  return {arguments[1], "--help"};
}

std::string Explain(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kInvalidArgument) return std::string(status.message());
  return StrCat(status.message(), " (", absl::StatusCodeToString(status.code()), ")");
}

// Fails when the output could not be written, for example because the disk is full.
int FlushOutput() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  PrintError("cannot write to standard output");
  return kExitFailure;
}

// CLI11's help with one empty line between groups instead of two.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return CLI::detail::find_and_replace(CLI::Formatter::make_help(app, name, mode), "\n\n\n",
                                         "\n\n");
  }

  // Switches of the engine without "{false}" and their variables: they look as its other flags do.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return CLI::detail::find_and_replace(CLI::Formatter::make_option_name(option, is_positional),
                                         "{false}", "");
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const bool is_switch = option->get_option_text().empty() && option->get_expected_min() == 0;
    return is_switch ? "" : CLI::Formatter::make_option_opts(option);
  }
};

void FillRoot(CLI::App* root) {
  root->require_subcommand(0, 1);  // later words are the command's, also if they name another one
  root->set_version_flag("--version", "lssar " LSSAR_VERSION);
  root->set_help_flag("-h,--help", "Print this help");
  const auto formatter = std::make_shared<HelpFormatter>();
  formatter->column_width(30);
  formatter->label("SUBCOMMAND", "COMMAND");
  formatter->label("Positionals", "Arguments");
  formatter->label("OPTIONS", "FLAGS");
  root->formatter(formatter);
  root->footer(
      "lssar help COMMAND lists the flags of a command.\n"
      "Each command connects to a server (--server HOST:PORT, default 127.0.0.1:50051) or, with\n"
      "--model DIR, runs the same server in its own process.\n"
      "Exit codes: 0 success, 1 failure, 2 wrong usage.\n\n"
      "Examples:\n"
      "  lssar generate --model models/zoo/lssar-6m 'The river'\n"
      "  lssar chat --model models/zoo/lssar-6m");
}

int Main(int argc, char** argv) {
  Interrupt::Start();
  // gRPC logs connection attempts to stderr; the user gets them as a status.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Protobuf logs text that is not UTF-8; the server's answer names the field and the byte.
  google::protobuf::SetLogHandler(nullptr);

  CLI::App root("Inference for GPT models with LSSAR attention.", "lssar");
  FillRoot(&root);
  std::vector<std::pair<CLI::App*, std::unique_ptr<Command>>> commands;
  for (const CommandEntry& entry : kCommands) {
    std::unique_ptr<Command> command = entry.make();
    CLI::App* app = root.add_subcommand(entry.name, entry.about)->group("Commands");
    ArgumentParser parser(app);
    command->AddFlags(&parser);
    commands.emplace_back(app, std::move(command));
  }
  const auto chosen = [&root]() -> CLI::App* {
    const auto parsed = root.get_subcommands();
    return parsed.empty() ? nullptr : parsed.front();
  };
  try {
    std::vector<std::string> arguments = ReadArguments(argc, argv);
    std::ranges::reverse(arguments);  // the order that CLI11 wants
    root.parse(std::move(arguments));
  } catch (const CLI::Success& success) {  // --help, --version
    root.exit(success);
    return FlushOutput();
  } catch (const CLI::ExtrasError&) {
    PrintError(StrCat(ExplainLeftover(root, chosen()), " (--help lists them all)"));
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    PrintError(StrCat(DescribeError(error), "; see --help"));
    return kExitUsage;
  }
  for (const std::string& sentence : MisspeltVariables(environ)) PrintError(sentence);
  for (const auto& [app, command] : commands) {
    if (!app->parsed()) continue;
    const absl::Status status = command->Run();
    if (status.ok()) return FlushOutput();
    PrintError(Explain(status));
    return status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
  }
  std::cerr << root.help();
  return kExitUsage;
}

}  // namespace
}  // namespace lssar::cli

int main(int argc, char** argv) { return lssar::cli::Main(argc, argv); }
