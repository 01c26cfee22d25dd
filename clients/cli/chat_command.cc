// `lssar chat`: a conversation, on a terminal or line by line from a pipe.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/error_details.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/json_output.h"
#include "clients/cli/line_editor.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/special_tokens.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {
namespace {

// Upper estimate of the tokens that a template adds to a message.
constexpr int kTemplateTokens = 8;

void AddMessage(const std::string& role, const std::string& content, v1::Chat* chat) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

// A chat: its messages, one answer at a time, and how full the context is.
class ChatSession {
 public:
  // `stub` must outlive the session. `max_model_len`: tokens, of the server.
  ChatSession(Service* stub, const SamplingFlags& sampling, int max_model_len);

  // Sends `text` after the messages so far. The answer becomes part of the chat, also when
  // `interrupt` stops it early; without any answer, `text` is removed again. Role markers are
  // taken out of the answer: in the next prompt they would begin a turn that nobody took.
  // Errors  OUT_OF_RANGE "the context is full ...", "the message is too long ...": nothing was
  //         sent; those of Generate
  absl::Status Say(const std::string& text, Interrupt* interrupt, const OnDelta& on_delta,
                   GenerateResult* result);

  // Removes all messages but the system text.
  void Reset();

  // Sets the system text from the next answer on; empty: none.
  void SetSystem(const std::string& text) { system_ = text; }

  // Tokens of the last prompt and answer.
  int NumContextTokens() const { return num_context_tokens_; }
  int MaxModelLen() const { return max_model_len_; }
  bool IsContextFull() const { return num_context_tokens_ >= max_model_len_; }

  int NumAnswers() const { return num_answers_; }
  // Since the session began.
  int64_t NumGeneratedTokens() const { return num_generated_tokens_; }

 private:
  // Errors  as Say
  absl::StatusOr<v1::GenerateRequest> MakeRequest(const std::string& text,
                                                  Interrupt* interrupt) const;
  // Tokens left for an answer to `text`; negative if `text` itself does not fit.
  absl::StatusOr<int> EstimateTokensLeft(const std::string& text, Interrupt* interrupt) const;

  Service* stub_;
  SamplingFlags sampling_;
  int max_model_len_;
  std::string system_;
  v1::Chat chat_;
  int num_context_tokens_ = 0;
  int num_answers_ = 0;
  int64_t num_generated_tokens_ = 0;
};

ChatSession::ChatSession(Service* stub, const SamplingFlags& sampling, int max_model_len)
    : stub_(stub), sampling_(sampling), max_model_len_(max_model_len) {}

absl::StatusOr<int> ChatSession::EstimateTokensLeft(const std::string& text,
                                                    Interrupt* interrupt) const {
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                   Tokenize(stub_, text, /*add_bos=*/false, interrupt));
  return max_model_len_ - num_context_tokens_ - int(ids.size()) - kTemplateTokens;
}

absl::StatusOr<v1::GenerateRequest> ChatSession::MakeRequest(const std::string& text,
                                                             Interrupt* interrupt) const {
  ASSIGN_OR_RETURN(const int tokens_left, EstimateTokensLeft(text, interrupt));
  if (tokens_left < 1 && num_context_tokens_ == 0) {
    return absl::OutOfRangeError(StrCat("the message is too long: it takes about ",
                                        max_model_len_ - tokens_left,
                                        " tokens, and the context has ", max_model_len_));
  }
  if (tokens_left < 1) {
    return absl::OutOfRangeError(StrCat("the context is full: the chat takes ", num_context_tokens_,
                                        " of ", max_model_len_, " tokens, and this message needs ",
                                        1 - tokens_left, " more"));
  }
  v1::GenerateRequest request;
  RETURN_IF_ERROR(FillRequest(sampling_, &request));
  if (request.has_max_tokens()) request.set_max_tokens(std::min(request.max_tokens(), tokens_left));
  if (request.has_min_tokens()) request.set_min_tokens(std::min(request.min_tokens(), tokens_left));
  if (!system_.empty()) AddMessage("system", system_, request.mutable_chat());
  request.mutable_chat()->mutable_messages()->MergeFrom(chat_.messages());
  AddMessage("user", text, request.mutable_chat());
  return request;
}

absl::Status ChatSession::Say(const std::string& text, Interrupt* interrupt,
                              const OnDelta& on_delta, GenerateResult* result) {
  ASSIGN_OR_RETURN(const v1::GenerateRequest request, MakeRequest(text, interrupt));
  absl::Status status = RunGenerate(stub_, request, interrupt, on_delta, result);
  std::string& answer = result->choices[0].text;
  answer = WithoutSpecialTokens(answer, result->choices[0].tokens);
  num_generated_tokens_ += result->NumTokens();
  // A partial answer counts. A question without one is dropped: two user messages would follow
  // each other.
  if (status.ok() || !answer.empty()) {
    AddMessage("user", text, &chat_);
    AddMessage("assistant", answer, &chat_);
    num_context_tokens_ = result->started.num_prompt_tokens() + result->NumTokens();
    ++num_answers_;
  }
  return interrupt->Fired() ? absl::OkStatus() : status;
}

void ChatSession::Reset() {
  chat_.Clear();
  num_context_tokens_ = 0;
}
constexpr char kChatHelp[] =
    "/help         print this\n"
    "/reset        remove the messages; the system text stays\n"
    "/system TEXT  set the system text; without TEXT, remove it\n"
    "/stats        print tokens so far and the use of the context\n"
    "/quit         leave (or Ctrl-D)\n"
    "//...         send a message that begins with a slash\n"
    "A line that ends with a backslash goes on in the next one. Pasted lines are one message.\n"
    "Ctrl-C stops an answer; its beginning stays in the chat.\n";

// The server's is 1, at which a small model's answers often are no answers.
constexpr float kTemperature = 0.2f;

constexpr char kHowToGoOn[] = "/reset removes the messages and keeps the system text; /quit leaves";

// Prints to stderr: stdout holds the answers only.
void Remark(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", Dim(StderrTerminal(), text).c_str());
}

// Several lines are a message, such as pasted code that begins with a comment. The system text may
// have several.
bool IsCommand(absl::string_view text) {
  if (absl::StrContains(text, '\n')) return absl::StartsWith(text, "/system ");
  return absl::StartsWith(text, "/") && !absl::StartsWith(text, "//");
}

std::string MessageOf(absl::string_view text) {
  const bool has_extra_slash = absl::StartsWith(text, "//") && !absl::StrContains(text, '\n');
  return std::string(text.substr(has_extra_slash ? 1 : 0));
}

class ChatCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    parser->Add("--system", system_, "system text [default: none]").ValueName("TEXT").Group("Chat");
    sampling_.sampling.set_temperature(kTemperature);
    AddSamplingFlags(parser, &sampling_);
    parser->AddSwitch("--json", json_, "print one JSON object per line for each answer")
        .Group("Output");
    AddConnectionFlags(parser, &connection_);
    parser->Footer(StrCat(
        "While chatting:\n", kChatHelp,
        "The history of lines is in $LSSAR_HISTORY (default ~/.local/state/lssar/history).\n\n"
        "Examples:\n"
        "  lssar chat --model models/zoo/lssar-6m --temperature 0.7\n"
        "  printf 'How are you?\\n' | lssar chat --max-tokens 60 --seed 1"));
  }

  absl::Status Run() override {
    v1::GenerateRequest unused;
    absl::Status status =
        FillRequest(sampling_, &unused);  // reports a bad flag before the first message
    if (!status.ok()) return status;
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    ASSIGN_OR_RETURN(const auto served, DescribeServer(connection->Stub()));
    if (!served.has_chat_template()) {
      return absl::FailedPreconditionError(StrCat(
          served.model_name(), " has no chat template; `lssar generate` continues plain text"));
    }
    ChatSession session(connection->Stub(), sampling_, served.max_model_len());
    session.SetSystem(system_);
    if (StdoutTerminal().is_tty && !json_) {
      Remark(StrCat(served.model_name(), ", ", served.max_model_len(),
                    " tokens of context. /help lists the commands."));
    }
    return ReadAndAnswer(&session);
  }

 private:
  absl::Status ReadAndAnswer(ChatSession* session) {
    const std::unique_ptr<LineEditor> editor = MakeLineEditor("> ", HistoryPath());
    absl::Status last_error;
    absl::Status untold;  // an error that is printed when it is known not to be the last line
    int num_lines = 0;
    int num_messages = 0;
    int num_failed = 0;
    std::string line;
    while (true) {
      const LineEditor::Result result = editor->Read(&line);
      if (result == LineEditor::Result::kEnd) break;
      if (result == LineEditor::Result::kInterrupted) continue;
      ++num_lines;
      const absl::string_view text = absl::StripAsciiWhitespace(line);
      if (text.empty()) continue;
      Tell(untold, *session);
      untold = absl::OkStatus();
      if (IsCommand(text)) {
        if (!RunSlashCommand(text, session)) break;
        continue;
      }
      const absl::Status status = Answer(MessageOf(text), session);
      ++num_messages;
      if (status.ok()) continue;
      ++num_failed;
      last_error = status;
      if (status.code() == absl::StatusCode::kUnavailable) break;
      if (StdoutTerminal().is_tty || isatty(STDIN_FILENO) == 1) {
        Tell(status, *session);
      } else {
        untold = WithPrefix(StrCat("line ", num_lines, ": "), status);
      }
    }
    if (StdoutTerminal().is_tty && !json_) std::printf("\n");
    // On a terminal the user has seen the error and continued; a script has only the exit code.
    if (StdoutTerminal().is_tty && last_error.code() != absl::StatusCode::kUnavailable) {
      return absl::OkStatus();
    }
    if (!untold.ok()) return untold;
    if (last_error.ok() || last_error.code() == absl::StatusCode::kUnavailable) return last_error;
    return WithMessage(last_error, StrCat(num_failed, " of ", num_messages, " messages ",
                                          num_failed == 1 ? "has" : "have", " no answer"));
  }

  static void Tell(const absl::Status& error, const ChatSession& session) {
    if (error.ok()) return;
    Remark(std::string(error.message()));
    const bool helps = error.code() == absl::StatusCode::kOutOfRange;
    if (helps && session.NumContextTokens() > 0) Remark(kHowToGoOn);
  }

  absl::Status Answer(const std::string& text, ChatSession* session) {
    Interrupt interrupt;
    GenerateResult result;
    SpecialTokenFilter filter;
    const auto on_delta = [&](const v1::Delta& delta) {
      if (!json_) PrintText(filter.Push(delta));
    };
    const absl::Status status = session->Say(text, &interrupt, on_delta, &result);
    const bool has_answer = status.ok() || result.NumTokens() > 0;
    if (result.choices.empty() || !has_answer) return status;
    if (json_) {
      PrintAnswerJson(result, interrupt.Fired());
    } else {
      PrintText(filter.Finish());
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

  // Returns false to leave the chat.
  static bool RunSlashCommand(absl::string_view text, ChatSession* session) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits(' ', 1));
    const std::string name(parts.first);
    if (name == "/quit") return false;
    if (name == "/help") {
      Remark(std::string(absl::StripTrailingAsciiWhitespace(kChatHelp)));
    } else if (name == "/reset") {
      session->Reset();
      Remark("the chat starts over");
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
