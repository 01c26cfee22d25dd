// Reads lines: with editing and history on a terminal, plain from a pipe.
#ifndef LSSAR_CLIENTS_CLI_LINE_EDITOR_H_
#define LSSAR_CLIENTS_CLI_LINE_EDITOR_H_

#include <memory>
#include <string>

namespace lssar::cli {

class LineEditor {
 public:
  enum class Result { kLine, kInterrupted, kEnd };  // kInterrupted: Ctrl-C discarded the line

  virtual ~LineEditor() = default;

  // The next message, without its last newline. On a terminal it has several lines where they were
  // pasted, or where a line ended with a backslash. From a pipe it is one line.
  virtual Result Read(std::string* line) = 0;
};

// Uses libedit if standard input and output are terminals, and shows `prompt`; reads plain lines
// otherwise. The history is stored in `history_path`, which is created with its directories and
// readable by the user alone; empty: no history. Sets the locale's character type to UTF-8.
std::unique_ptr<LineEditor> MakeLineEditor(const std::string& prompt,
                                           const std::string& history_path);

// $LSSAR_HISTORY, else lssar/history in $XDG_STATE_HOME or ~/.local/state; empty without any.
std::string HistoryPath();

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_LINE_EDITOR_H_
