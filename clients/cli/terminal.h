// What the standard streams can show: terminal or pipe, colours or not.
#ifndef LSSAR_CLIENTS_CLI_TERMINAL_H_
#define LSSAR_CLIENTS_CLI_TERMINAL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace lssar::cli {

struct Terminal {
  bool is_tty = false;
  bool has_colour = false;  // a terminal, TERM is not "dumb" and NO_COLOR is unset or empty
  int num_columns = 80;
};

const Terminal& StdoutTerminal();
const Terminal& StderrTerminal();

// `text` in bold or dim letters where the terminal has colours, else as it is.
std::string Bold(const Terminal& terminal, absl::string_view text);
std::string Dim(const Terminal& terminal, absl::string_view text);

// `text` without control characters other than tab and newline: what a model writes must not be
// able to drive the terminal. Unchanged for a pipe.
std::string SafeText(const Terminal& terminal, absl::string_view text);

// One line of at most `max_columns` code points: line breaks and tabs as escapes, the rest cut
// with an ellipsis.
std::string OneLine(absl::string_view text, int max_columns);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_TERMINAL_H_
