#include "clients/cli/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "clients/cli/table.h"
#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

constexpr int kCellColumns = 7;

std::string PadLeft(absl::string_view text, int num_columns) {
  const int padding = std::max(0, num_columns - DisplayWidth(text));
  return StrCat(std::string(static_cast<size_t>(padding), ' '), text);
}

// Red over yellow to green, of the 256-colour cube; black letters read well on each.
std::string ColourCell(double share, absl::string_view text) {
  constexpr std::array<int, 7> kRamp = {203, 209, 215, 221, 185, 149, 113};
  const auto idx = static_cast<size_t>(std::lround(share * (kRamp.size() - 1)));
  return absl::StrFormat("\x1b[48;5;%d;38;5;16m%s \x1b[0m", kRamp[idx],
                         PadLeft(text, kCellColumns - 1));
}

std::string ShadeCell(double share, absl::string_view text) {
  constexpr std::array<absl::string_view, 5> kShades = {"  ", "░░", "▒▒", "▓▓", "██"};
  const auto idx = static_cast<size_t>(std::lround(share * (kShades.size() - 1)));
  return StrCat(PadLeft(text, kCellColumns - 3), " ", kShades[idx]);
}

std::string RenderCell(const HitCount& cell, const Terminal& terminal) {
  if (cell.num_trials == 0) return PadLeft(terminal.is_tty ? "·" : ".", kCellColumns);
  const double share = cell.Share();
  const std::string percent = StrCat(std::lround(100 * share));
  if (terminal.has_colour) return ColourCell(share, percent);
  if (terminal.is_tty) return ShadeCell(share, percent);
  return PadLeft(percent, kCellColumns);
}

}  // namespace

std::string RenderHeatMap(const HeatMap& map, const Terminal& terminal) {
  LSSAR_CHECK(map.cells.size() == map.row_labels.size());
  int label_columns = DisplayWidth(map.corner);
  for (const auto& label : map.row_labels) {
    label_columns = std::max(label_columns, DisplayWidth(label));
  }
  std::string out = PadLeft(map.corner, label_columns);
  for (const auto& label : map.column_labels) {
    absl::StrAppend(&out, " ", PadLeft(label, kCellColumns));
  }
  out += '\n';
  for (size_t row = 0; row < map.cells.size(); ++row) {
    LSSAR_CHECK(map.cells[row].size() == map.column_labels.size());
    absl::StrAppend(&out, PadLeft(map.row_labels[row], label_columns));
    for (const HitCount& cell : map.cells[row]) {
      absl::StrAppend(&out, " ", RenderCell(cell, terminal));
    }
    out += '\n';
  }
  return out;
}

}  // namespace lssar::cli
