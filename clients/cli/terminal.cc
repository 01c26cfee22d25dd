#include "clients/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "kernels/str_cat.h"

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

bool IsContinuationByte(char c) { return (uint8_t(c) & 0xC0) == 0x80; }

// Bytes of the UTF-8 character that `text` starts with; 0: none. As models/utf8.h, which clients do
// not include.
size_t CharacterBytes(absl::string_view text) {
  const auto lead = uint8_t(text[0]);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) return 0;
  // These bounds leave out overlong forms, surrogates and what lies above U+10FFFF.
  const auto second = uint8_t(text[1]);
  if (second < (lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80)) return 0;
  if (second > (lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF)) return 0;
  return absl::c_all_of(text.substr(2, size - 2), IsContinuationByte) ? size : 0;
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

std::string OneLine(absl::string_view text, int max_columns) {
  std::string line;
  int num_columns = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t num_bytes = CharacterBytes(text.substr(i));
    const size_t end = i + std::max<size_t>(num_bytes, 1);
    std::string shown = num_bytes == 0 ? absl::StrFormat("\\x%02X", uint8_t(text[i]))
                                       : std::string(text.substr(i, num_bytes));
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
