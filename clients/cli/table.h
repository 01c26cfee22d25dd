// Tables and heat maps in plain text.
#ifndef LSSAR_CLIENTS_CLI_TABLE_H_
#define LSSAR_CLIENTS_CLI_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {

// Columns of `text` on a terminal: one per code point, two for the wide scripts of East Asia and
// emoji, none for combining marks (the common blocks of each, not all of Unicode).
int DisplayWidth(absl::string_view text);

// Each column is as wide as its widest cell.
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

  // Titles, a rule, rows. Each line ends in a newline and has no trailing spaces.
  std::string Render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

struct HitCount {
  int num_hits = 0;
  int num_trials = 0;  // 0: no result; an empty cell

  void Add(bool is_hit) {
    ++num_trials;
    num_hits += is_hit ? 1 : 0;
  }
  // [0, 1]; 0 without trials.
  double Share() const { return num_trials == 0 ? 0 : double(num_hits) / num_trials; }
};

// A grid of shares.
struct HeatMap {
  std::string corner;  // names of both axes: "depth \ length"
  std::vector<std::string> row_labels;
  std::vector<std::string> column_labels;
  std::vector<std::vector<HitCount>> cells;  // [row][column]
};

// Each cell shows the share of hits in percent, with colours on a terminal, with shades on one
// without colours, as a number in a pipe.
std::string RenderHeatMap(const HeatMap& map, const Terminal& terminal);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_TABLE_H_
