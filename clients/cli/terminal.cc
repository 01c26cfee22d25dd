#include "clients/cli/terminal.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "base/str_cat.h"
#include "base/utf8.h"

namespace lssar::cli {
namespace {

Terminal Inspect(int fd) {
  Terminal terminal;
  terminal.is_tty = isatty(fd) == 1;
  if (!terminal.is_tty) return terminal;
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  terminal.has_colour = (no_colour == nullptr || *no_colour == '\0') && term != nullptr &&
                        absl::string_view(term) != "dumb";
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.num_columns = size.ws_col;
  return terminal;
}

constexpr absl::string_view kPasteOn = "\x1b[?2004h";
constexpr absl::string_view kPasteOff = "\x1b[?2004l";

// What a signal has to undo: the sequence, and the modes that the editor has set by then.
std::atomic<bool> is_paste_marked = false;
termios modes_before = {};

void WriteSequence(absl::string_view sequence) {
  // Not through stdout: a handler of a signal must not take its lock.
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, sequence.data(), sequence.size());
}

void UndoAndDie(int signal_number) {
  RestoreTerminal();
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

// Leaves a signal alone that is handled otherwise: nohup has SIGHUP ignored.
void Replace(int signal_number, sighandler_t from, sighandler_t to) {
  const sighandler_t current = signal(signal_number, to);
  if (current != from) signal(signal_number, current);
}

bool IsControl(char c) {
  const auto byte = uint8_t(c);
  return byte < 0x20 || byte == 0x7F;
}

}  // namespace

const Terminal& StdoutTerminal() {
  static const Terminal terminal = Inspect(STDOUT_FILENO);
  return terminal;
}

const Terminal& StderrTerminal() {
  static const Terminal terminal = Inspect(STDERR_FILENO);
  return terminal;
}

std::string Bold(const Terminal& terminal, absl::string_view text) {
  return terminal.has_colour ? StrCat("\x1b[1m", text, "\x1b[0m") : std::string(text);
}

std::string Dim(const Terminal& terminal, absl::string_view text) {
  return terminal.has_colour ? StrCat("\x1b[2m", text, "\x1b[0m") : std::string(text);
}

void PrintText(absl::string_view text) {
  const std::string safe = SafeText(StdoutTerminal(), text);
  std::fwrite(safe.data(), 1, safe.size(), stdout);
  std::fflush(stdout);
}

std::string SafeText(const Terminal& terminal, absl::string_view text) {
  if (!terminal.is_tty) return std::string(text);
  std::string safe;
  safe.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    // U+0080 to U+009F (C2 80 to C2 9F) are control characters too: 9B starts an escape sequence.
    const bool is_c1 = text[i] == '\xC2' && i + 1 < text.size() && uint8_t(text[i + 1]) >= 0x80 &&
                       uint8_t(text[i + 1]) <= 0x9F;
    if (is_c1) {
      ++i;
    } else if (text[i] == '\n' || text[i] == '\t' || !IsControl(text[i])) {
      safe += text[i];
    }
  }
  return safe;
}

void RestoreTerminal() {
  if (!is_paste_marked) return;
  WriteSequence(kPasteOff);
  tcsetattr(STDIN_FILENO, TCSANOW, &modes_before);
}

void SetBracketedPaste(bool is_on) {
  constexpr std::array<int, 3> kFatalSignals = {SIGTERM, SIGHUP, SIGQUIT};
  const char* term = std::getenv("TERM");
  const bool knows_it = StdoutTerminal().is_tty && term != nullptr && *term != '\0' &&
                        absl::string_view(term) != "dumb";
  if (!knows_it || is_paste_marked == is_on) return;
  std::fflush(stdout);
  if (is_on) {
    tcgetattr(STDIN_FILENO, &modes_before);
    is_paste_marked = true;
    for (const int number : kFatalSignals) Replace(number, SIG_DFL, UndoAndDie);
    WriteSequence(kPasteOn);
  } else {
    WriteSequence(kPasteOff);
    for (const int number : kFatalSignals) Replace(number, UndoAndDie, SIG_DFL);
    is_paste_marked = false;
  }
}

std::string OneLine(absl::string_view text, int max_columns) {
  std::string line;
  int num_columns = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = NextUtf8({text.data() + i, text.size() - i});
    const bool is_character = unit.kind == Utf8Kind::kCharacter;
    const size_t end = i + (is_character ? unit.num_bytes : 1);
    std::string shown = is_character ? std::string(text.substr(i, unit.num_bytes))
                                     : absl::StrFormat("\\x%02X", uint8_t(text[i]));
    if (text[i] == '\n') shown = "\\n";
    if (text[i] == '\t') shown = "\\t";
    if (shown.size() == 1 && IsControl(shown[0])) shown = "?";
    const int width = shown[0] == '\\' ? int(shown.size()) : 1;
    const bool is_last = end == text.size();
    if (num_columns + width > max_columns - (is_last ? 0 : 1)) return line + "…";
    line += shown;
    num_columns += width;
    i = end;
  }
  return line;
}

}  // namespace lssar::cli
