// Properties of the standard streams, and text that is safe for them.
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

// `text` in bold or dim if the terminal has colours, else unchanged.
std::string Bold(const Terminal& terminal, absl::string_view text);
std::string Dim(const Terminal& terminal, absl::string_view text);

// `text` without control characters other than tab and newline, so that a model's output cannot
// control the terminal. Unchanged for a pipe.
std::string SafeText(const Terminal& terminal, absl::string_view text);

// While it is on, the terminal marks what is pasted (bracketed paste). It is on while a line is
// read; signals that end the process then restore the terminal. Nothing is sent to a pipe or to a
// terminal that knows no sequences.
void SetBracketedPaste(bool is_on);

// Undoes what was set since SetBracketedPaste(true), as far as it is on; also in a handler of a
// signal.
void RestoreTerminal();

// One line of at most `max_columns` code points: line breaks, tabs and bytes that are not UTF-8 (a
// token may be a part of a character) become escapes, longer text ends in an ellipsis.
std::string OneLine(absl::string_view text, int max_columns);

// Writes the safe form of `text` to stdout, at once.
void PrintText(absl::string_view text);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_TERMINAL_H_
