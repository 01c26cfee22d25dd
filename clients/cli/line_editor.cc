#include "clients/cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <sys/stat.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwctype>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/str_cat.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {
namespace {

constexpr int kHistoryLines = 1000;
constexpr wchar_t kCtrlC = 3;
constexpr char kContinued[] = "... ";  // prompt of a message's further lines

class PipeReader : public LineEditor {
 public:
  Result Read(std::string* line) override {
    if (!std::getline(std::cin, *line)) return Result::kEnd;
    return Result::kLine;
  }
};

// In the C locale libedit splits letters beyond ASCII into bytes.
void UseUtf8() {
  const char* chosen = std::setlocale(LC_CTYPE, "");
  if (chosen == nullptr || std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

class TerminalEditor : public LineEditor {
 public:
  TerminalEditor(const std::string& prompt, const std::string& history_path)
      : prompt_(prompt), history_path_(history_path) {
    UseUtf8();
    editor_ = el_init("lssar", stdin, stdout, stderr);
    history_ = history_init();
    LSSAR_CHECK(editor_ != nullptr && history_ != nullptr);
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_path_.empty()) history(history_, &event, H_LOAD, history_path_.c_str());
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &TerminalEditor::Prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, ::history, history_);
    el_set(editor_, EL_ADDFN, "lssar-discard", "Discard the line", &TerminalEditor::Discard);
    el_set(editor_, EL_ADDFN, "lssar-paste", "Insert pasted lines", &TerminalEditor::Paste);
    // While a line is edited Ctrl-C is a key, not a signal.
    el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor_, EL_BIND, "^C", "lssar-discard", nullptr);
    el_set(editor_, EL_BIND, "\\e[200~", "lssar-paste", nullptr);
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  }

  ~TerminalEditor() override {
    history_end(history_);
    el_end(editor_);
  }
  TerminalEditor(const TerminalEditor&) = delete;
  TerminalEditor& operator=(const TerminalEditor&) = delete;

  Result Read(std::string* line) override {
    // Before and after libedit controls the terminal, Ctrl-C is a signal: it must not end the chat.
    const Interrupt signal;
    std::string message;
    Result result = ReadLine(prompt_, &message);
    while (result == Result::kLine && message.ends_with('\\')) {
      message.back() = '\n';
      std::string next;
      result = ReadLine(kContinued, &next);
      message += next;
      if (result == Result::kEnd) {  // Ctrl-D ends the message, not the chat
        result = Result::kLine;
        break;
      }
    }
    if (result != Result::kLine) return result;
    if (message.find_first_not_of(" \n") != std::string::npos) Remember(message);
    *line = std::move(message);
    return Result::kLine;
  }

 private:
  Result ReadLine(const std::string& prompt, std::string* line) {
    shown_prompt_ = prompt;
    is_discarded_ = false;
    int num_chars = 0;
    SetBracketedPaste(true);
    const char* text = el_gets(editor_, &num_chars);
    SetBracketedPaste(false);
    if (is_discarded_) return Result::kInterrupted;
    if (text == nullptr || num_chars <= 0) return Result::kEnd;
    *line = text;
    if (line->ends_with('\n')) line->pop_back();
    return Result::kLine;
  }

  static TerminalEditor* Self(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<TerminalEditor*>(self);
  }

  static char* Prompt(EditLine* editor) { return Self(editor)->shown_prompt_.data(); }

  static unsigned char Discard(EditLine* editor, int /*key*/) {
    Self(editor)->is_discarded_ = true;
    std::fputs("^C\n", stdout);  // libedit moves to a new line only for its own newline key
    return CC_NEWLINE;
  }

  // Called at the sequence that begins a paste. Its newlines become part of the line: the Enter
  // that is typed afterwards sends it.
  static unsigned char Paste(EditLine* editor, int /*key*/) {
    constexpr std::wstring_view kPasteEnd = L"\x1b[201~";
    std::wstring pasted;
    wchar_t c = 0;
    while (!pasted.ends_with(kPasteEnd) && el_wgetc(editor, &c) == 1) {
      // Terminals leave it out of a paste. It is the way out where the end does not come.
      if (c == kCtrlC) return Discard(editor, c);
      pasted += c;
    }
    if (pasted.ends_with(kPasteEnd)) pasted.resize(pasted.size() - kPasteEnd.size());
    std::wstring text;
    for (const wchar_t letter : pasted) {
      if (letter == L'\r' || letter == L'\n') {
        text += L'\n';  // terminals send the key Enter for each line's end
      } else if (letter == L'\t' || std::iswcntrl(wint_t(letter)) == 0) {
        text += letter;
      }
    }
    if (el_winsertstr(editor, text.c_str()) != 0) return CC_ERROR;
    return CC_REFRESH;
  }

  // Saves after each line, so that a killed chat keeps its history.
  void Remember(const std::string& message) {
    HistEvent event;
    history(history_, &event, H_ENTER, message.c_str());
    if (history_path_.empty()) return;
    std::error_code error;
    const std::filesystem::path directory = std::filesystem::path(history_path_).parent_path();
    if (!directory.empty()) std::filesystem::create_directories(directory, error);
    const mode_t old_mask = umask(077);
    history(history_, &event, H_SAVE, history_path_.c_str());
    umask(old_mask);
  }

  std::string prompt_;
  std::string shown_prompt_;
  std::string history_path_;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  bool is_discarded_ = false;
};

}  // namespace

std::unique_ptr<LineEditor> MakeLineEditor(const std::string& prompt,
                                           const std::string& history_path) {
  const bool is_terminal = isatty(STDIN_FILENO) == 1 && StdoutTerminal().is_tty;
  if (!is_terminal) return std::make_unique<PipeReader>();
  return std::make_unique<TerminalEditor>(prompt, history_path);
}

std::string HistoryPath() {
  if (const char* path = std::getenv("LSSAR_HISTORY"); path != nullptr) return path;
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return StrCat(state, "/lssar/history");
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return StrCat(home, "/.local/state/lssar/history");
}

}  // namespace lssar::cli
