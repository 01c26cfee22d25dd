// `lssar chat`: a talk with the model, on a terminal or line by line from a pipe.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "clients/cli/chat_session.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/json_output.h"
#include "clients/cli/line_editor.h"
#include "clients/cli/sampling_flags.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

constexpr char kChatHelp[] =
    "/help         this\n"
    "/reset        forget the chat; the system text stays\n"
    "/system TEXT  put TEXT before the chat; without TEXT, take it away\n"
    "/stats        tokens so far and how full the context is\n"
    "/quit         leave (or Ctrl-D)\n"
    "//...         say something that begins with a slash\n"
    "Ctrl-C stops an answer and keeps what came of it.\n";

constexpr char kHowToGoOn[] = "/reset forgets the chat and keeps the system text; /quit leaves";

// Remarks go to stderr: stdout holds the answers alone.
void Remark(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", Dim(StderrTerminal(), text).c_str());
}

class ChatCommand : public Command {
 public:
  void AddFlags(CLI::App* app) override {
    app->add_option("--system", system_, "text before the chat [default: none]")
        ->option_text("TEXT")
        ->group("Chat");
    AddSamplingFlags(app, &sampling_);
    app->add_flag("--json", json_, "one JSON object a line for each answer")->group("Output");
    AddConnectionFlags(app, &connection_);
    app->footer(
        StrCat("While chatting:\n", kChatHelp,
               "Lines are kept in $LSSAR_HISTORY (default ~/.local/state/lssar/history).\n\n"
               "Examples:\n"
               "  lssar chat --model models/zoo/lssar-6m --temperature 0.7\n"
               "  printf 'How are you?\\n' | lssar chat --max-tokens 60 --seed 1"));
  }

  absl::Status Run() override {
    v1::GenerateRequest unused;
    absl::Status status = FillRequest(sampling_, &unused);  // a bad flag ends here, not later
    if (!status.ok()) return status;
    const auto connection = Connection::Open(connection_);
    if (!connection.ok()) return connection.status();
    const auto served = DescribeServer((*connection)->Stub());
    if (!served.ok()) return served.status();
    if (!served->has_chat_template()) {
      return absl::FailedPreconditionError(StrCat(
          served->model_name(), " has no chat template; `lssar generate` continues plain text"));
    }
    ChatSession session((*connection)->Stub(), sampling_, served->max_model_len());
    session.SetSystem(system_);
    if (StdoutTerminal().is_tty && !json_) {
      Remark(StrCat(served->model_name(), ", ", served->max_model_len(),
                    " tokens of context. /help lists the commands."));
    }
    return ReadAndAnswer(&session);
  }

 private:
  absl::Status ReadAndAnswer(ChatSession* session) {
    const std::unique_ptr<LineEditor> editor = MakeLineEditor("> ", HistoryPath());
    absl::Status last_error;
    std::string line;
    while (true) {
      const LineEditor::Result result = editor->Read(&line);
      if (result == LineEditor::Result::kEnd) break;
      if (result == LineEditor::Result::kInterrupted) continue;
      const absl::string_view text = absl::StripAsciiWhitespace(line);
      if (text.empty()) continue;
      if (absl::StartsWith(text, "/") && !absl::StartsWith(text, "//")) {
        if (!RunSlashCommand(text, session)) break;
        continue;
      }
      const absl::Status status = Answer(std::string(text.substr(text[0] == '/' ? 1 : 0)), session);
      if (status.ok()) continue;
      last_error = status;
      if (status.code() == absl::StatusCode::kUnavailable) break;
      Remark(std::string(status.message()));
      if (status.code() == absl::StatusCode::kResourceExhausted) Remark(kHowToGoOn);
    }
    if (StdoutTerminal().is_tty && !json_) std::printf("\n");
    // On a terminal the user has seen the error and gone on; a script has only the exit code.
    if (StdoutTerminal().is_tty && last_error.code() != absl::StatusCode::kUnavailable) {
      return absl::OkStatus();
    }
    return last_error;
  }

  absl::Status Answer(const std::string& text, ChatSession* session) {
    Interrupt interrupt;
    GenerateResult result;
    const absl::Status status = session->Say(
        text, &interrupt, [this](const v1::Delta& delta) { PrintDelta(delta); }, &result);
    if (result.choices.empty()) return status;
    if (json_) {
      PrintAnswerJson(result, interrupt.Fired());
    } else {
      std::printf("\n");
      std::fflush(stdout);
      PrintRate(result, interrupt.Fired());
    }
    if (session->IsContextFull()) {
      Remark(StrCat("the context is full: ", session->NumContextTokens(), " of ",
                    session->MaxModelLen(), " tokens. ", kHowToGoOn));
    }
    return status;
  }

  void PrintDelta(const v1::Delta& delta) const {
    if (json_) return;
    const std::string safe = SafeText(StdoutTerminal(), delta.text());
    std::fwrite(safe.data(), 1, safe.size(), stdout);
    std::fflush(stdout);
  }

  static void PrintRate(const GenerateResult& result, bool was_stopped) {
    std::string rate = StrCat("[", result.NumTokens(), " tokens");
    if (result.TokensPerSecond() > 0) {
      absl::StrAppendFormat(&rate, ", %.1f tokens/s", result.TokensPerSecond());
    }
    Remark(StrCat(rate, was_stopped ? ", stopped]" : "]"));
  }

  static void PrintAnswerJson(const GenerateResult& result, bool was_stopped) {
    const GeneratedChoice& answer = result.choices[0];
    const v1::FinishReason reason =
        was_stopped ? v1::FINISH_REASON_CANCELLED : answer.finish_reason;
    PrintJson({{"role", "assistant"},
               {"content", answer.text},
               {"finish_reason", FinishReasonName(reason)},
               {"num_prompt_tokens", result.started.num_prompt_tokens()},
               {"num_tokens", result.NumTokens()},
               {"tokens_per_second", result.TokensPerSecond()}});
  }

  // False: leave.
  static bool RunSlashCommand(absl::string_view text, ChatSession* session) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits(' ', 1));
    const std::string name(parts.first);
    if (name == "/quit") return false;
    if (name == "/help") {
      Remark(std::string(absl::StripTrailingAsciiWhitespace(kChatHelp)));
    } else if (name == "/reset") {
      session->Reset();
      Remark("the chat begins anew");
    } else if (name == "/system") {
      const absl::string_view system = absl::StripAsciiWhitespace(parts.second);
      session->SetSystem(std::string(system));
      Remark(system.empty() ? "no system text" : "system text set, from the next answer on");
    } else if (name == "/stats") {
      Remark(absl::StrFormat("%d answers, %d tokens generated; context: %d of %d tokens",
                             session->NumAnswers(), session->NumGeneratedTokens(),
                             session->NumContextTokens(), session->MaxModelLen()));
    } else {
      const std::string nearest =
          NearestMatch(name, {"/help", "/reset", "/system", "/stats", "/quit"});
      Remark(
          StrCat("unknown command ", name,
                 nearest.empty() ? "; /help lists them" : StrCat("; did you mean ", nearest, "?")));
    }
    return true;
  }

  std::string system_;
  SamplingFlags sampling_;
  bool json_ = false;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakeChatCommand() { return std::make_unique<ChatCommand>(); }

}  // namespace lssar::cli
