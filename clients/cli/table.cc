#include "clients/cli/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/str_cat.h"

namespace lssar::cli {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

constexpr Range kZeroWidth[] = {{0x0300, 0x036F}, {0x200B, 0x200F}, {0xFE00, 0xFE0F}};
constexpr Range kDoubleWidth[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},
                                  {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
                                  {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F},
                                  {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

template <size_t kNum>
bool IsIn(const Range (&ranges)[kNum], char32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const Range& range) { return c >= range.first && c <= range.last; });
}

// The code point at text[*pos]; moves *pos past it. Each ill-formed byte counts as one.
char32_t NextCodePoint(absl::string_view text, size_t* pos) {
  const auto lead = uint8_t(text[(*pos)++]);
  const int num_more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
  char32_t c = num_more == 0 ? lead : lead & (0x3Fu >> num_more);
  for (int i = 0; i < num_more && *pos < text.size(); ++i) {
    const auto byte = uint8_t(text[*pos]);
    if ((byte & 0xC0) != 0x80) break;
    c = (c << 6) | (byte & 0x3Fu);
    ++*pos;
  }
  return c;
}

constexpr int kCellColumns = 7;

std::string PadLeft(absl::string_view text, int num_columns) {
  const int padding = std::max(0, num_columns - DisplayWidth(text));
  return StrCat(std::string(size_t(padding), ' '), text);
}

// From red over yellow to green in the 256-colour cube; black text is readable on each.
std::string ColourCell(double share, absl::string_view text) {
  constexpr std::array<int, 7> kRamp = {203, 209, 215, 221, 185, 149, 113};
  const auto idx = size_t(std::lround(share * (kRamp.size() - 1)));
  return absl::StrFormat("\x1b[48;5;%d;38;5;16m%s \x1b[0m", kRamp[idx],
                         PadLeft(text, kCellColumns - 1));
}

std::string ShadeCell(double share, absl::string_view text) {
  constexpr std::array<absl::string_view, 5> kShades = {"  ", "░░", "▒▒", "▓▓", "██"};
  const auto idx = size_t(std::lround(share * (kShades.size() - 1)));
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

int DisplayWidth(absl::string_view text) {
  int width = 0;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    if (IsIn(kZeroWidth, c)) continue;
    width += IsIn(kDoubleWidth, c) ? 2 : 1;
  }
  return width;
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) {
  LSSAR_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<int> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    int width = DisplayWidth(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[i]));
    widths.push_back(width);
  }
  std::string out;
  const auto end_line = [&out] {
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  };
  const auto add_cell = [&](size_t column, absl::string_view text) {
    const auto padding = size_t(widths[column] - DisplayWidth(text));
    if (column > 0) out += "  ";
    if (columns_[column].align == Align::kRight) out.append(padding, ' ');
    out += StrCat(text);
    if (columns_[column].align == Align::kLeft) out.append(padding, ' ');
  };
  for (size_t i = 0; i < columns_.size(); ++i) add_cell(i, columns_[i].title);
  end_line();
  for (size_t i = 0; i < columns_.size(); ++i) {
    add_cell(i, std::string(size_t(widths[i]), '-'));
  }
  end_line();
  for (const auto& row : rows_) {
    for (size_t i = 0; i < columns_.size(); ++i) add_cell(i, row[i]);
    end_line();
  }
  return out;
}

std::string RenderHeatMap(const HeatMap& map, const Terminal& terminal) {
  LSSAR_CHECK(map.cells.size() == map.row_labels.size());
  int label_columns = DisplayWidth(map.corner);
  for (const auto& label : map.row_labels) {
    label_columns = std::max(label_columns, DisplayWidth(label));
  }
  std::string out = PadLeft(map.corner, label_columns);
  for (const auto& label : map.column_labels) {
    out += StrCat(" ", PadLeft(label, kCellColumns));
  }
  out += '\n';
  for (size_t row = 0; row < map.cells.size(); ++row) {
    LSSAR_CHECK(map.cells[row].size() == map.column_labels.size());
    out += StrCat(PadLeft(map.row_labels[row], label_columns));
    for (const HitCount& cell : map.cells[row]) {
      out += StrCat(" ", RenderCell(cell, terminal));
    }
    out += '\n';
  }
  return out;
}

}  // namespace lssar::cli
