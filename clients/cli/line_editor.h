// Lines from the user: edited with history on a terminal, plain from a pipe.
#ifndef LSSAR_CLIENTS_CLI_LINE_EDITOR_H_
#define LSSAR_CLIENTS_CLI_LINE_EDITOR_H_

#include <memory>
#include <string>

namespace lssar::cli {

class LineEditor {
 public:
  enum class Result { kLine, kInterrupted, kEnd };  // kInterrupted: Ctrl-C took the line back

  virtual ~LineEditor() = default;

  // The next line, without its newline.
  virtual Result Read(std::string* line) = 0;
};

// libedit on standard input, if that and standard output are terminals; `prompt` is shown then.
// History is read from and kept in `history_path` (created with its directories, for the user's
// eyes alone; empty: none). Sets the locale's character type to UTF-8.
std::unique_ptr<LineEditor> MakeLineEditor(const std::string& prompt,
                                           const std::string& history_path);

// $LSSAR_HISTORY, else lssar/history in $XDG_STATE_HOME or ~/.local/state; empty when none is
// known.
std::string HistoryPath();

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_LINE_EDITOR_H_
