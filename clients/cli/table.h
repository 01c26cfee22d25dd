// A table in plain text: columns as wide as their widest cell.
#ifndef LSSAR_CLIENTS_CLI_TABLE_H_
#define LSSAR_CLIENTS_CLI_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lssar::cli {

// Columns that `text` takes on a terminal: one a code point, two for the wide scripts of East Asia
// and emoji, none for combining marks (the common blocks of each, not all of Unicode).
int DisplayWidth(absl::string_view text);

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns);

  // Requires  as many cells as columns
  void AddRow(std::vector<std::string> cells);

  // Title line, rule, rows; each line ends in a newline and has no trailing spaces.
  std::string Render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_TABLE_H_
