#include "clients/cli/attention_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/str_cat.h"
#include "clients/cli/table.h"

namespace lssar::cli {
namespace {

constexpr int kTokenColumns = 24;
constexpr int kLabelPieceColumns = 12;
constexpr int kBarColumns = 24;
// The weight at which a map is brightest; the paper clamps its maps there too.
constexpr double kFullWeight = 0.5;

std::string Quoted(const CapturedAttention& captured, int position, int max_columns) {
  const v1::TokenLogprob& token = captured.prompt[size_t(position)];
  if (token.piece().empty()) return StrCat("<id ", token.id(), ">");
  return StrCat("'", OneLine(token.piece(), max_columns), "'");
}

// A weight of 1 or -1 fills all columns.
std::string Bar(double weight, const Terminal& terminal) {
  weight = std::min(std::fabs(weight), 1.0);
  constexpr std::array<absl::string_view, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  if (!terminal.is_tty) {
    return std::string(size_t(std::lround(weight * kBarColumns)), '#');
  }
  const auto eighths = size_t(std::lround(weight * kBarColumns * 8));
  std::string bar;
  for (size_t i = 0; i < eighths / 8; ++i) bar += StrCat("█");
  return StrCat(bar, kEighths[eighths % 8]);
}

// Levels for weights from 0 to kFullWeight. A square root makes small weights visible.
constexpr std::array<absl::string_view, 5> kShades = {" ", "░", "▒", "▓", "█"};
constexpr absl::string_view kCharacters = " .:-=+*#%@";
constexpr std::array<int, 10> kColours = {0, 17, 18, 54, 90, 126, 162, 203, 215, 229};  // of 256

size_t NumLevels(const Terminal& terminal) {
  return terminal.is_tty && !terminal.has_colour ? kShades.size() : kCharacters.size();
}

std::string Cell(double weight, const Terminal& terminal) {
  const double share = std::sqrt(std::min(weight / kFullWeight, 1.0));
  const auto level = size_t(std::lround(share * double(NumLevels(terminal) - 1)));
  if (!terminal.is_tty) return std::string(kCharacters.substr(level, 1));
  if (!terminal.has_colour) return std::string(kShades[level]);
  return level == 0 ? " " : absl::StrFormat("\x1b[48;5;%dm \x1b[0m", kColours[level]);
}

// The smallest weight that shows as `level`.
double MinWeight(double level, const Terminal& terminal) {
  const double share = (level - 0.5) / double(NumLevels(terminal) - 1);
  return kFullWeight * share * share;
}

}  // namespace

std::string RenderRow(const CapturedAttention& captured, const v1::RowWeights& row,
                      const Terminal& terminal) {
  std::string out = Bold(
      terminal,
      absl::StrFormat("layer %d, head %d, row %d %s: %d of %d keys, effectively %.1f", row.layer(),
                      row.head(), row.row(), Quoted(captured, row.row(), kTokenColumns),
                      row.num_nonzero(), row.row() + 1, std::exp(row.entropy())));
  out += '\n';
  std::vector<std::pair<float, int>> keys;  // the largest first; of equal weights the first key
  for (int i = 0; i < row.keys_size(); ++i) keys.emplace_back(row.weights(i), row.keys(i));
  std::ranges::stable_sort(keys, std::greater<>(),
                           [](const auto& k) { return std::fabs(k.first); });
  for (const auto& [weight_of_key, key] : keys) {
    const auto weight = double(weight_of_key);
    const std::string bar = Bar(weight, terminal);
    const std::string padding(size_t(std::max(0, kBarColumns - DisplayWidth(bar))), ' ');
    absl::StrAppendFormat(&out, "  %.4f  %s%s  %6d  %s\n", weight, bar, padding, key,
                          Quoted(captured, key, kTokenColumns));
  }
  if (const int num_others = row.num_nonzero() - row.keys_size(); num_others > 0) {
    absl::StrAppendFormat(&out, "  %.4f  in %d other%s\n", row.dropped_mass(), num_others,
                          num_others == 1 ? "" : "s");
  }
  return out;
}

std::string RenderMap(const CapturedAttention& captured,
                      const std::vector<const v1::RowWeights*>& rows, const Terminal& terminal) {
  const v1::RowWeights& last = *rows.back();
  std::vector<std::string> labels;
  int label_columns = 0;
  for (const v1::RowWeights* row : rows) {
    labels.push_back(
        absl::StrFormat("%6d %s", row->row(), Quoted(captured, row->row(), kLabelPieceColumns)));
    label_columns = std::max(label_columns, DisplayWidth(labels.back()));
  }
  const int num_keys = last.row() + 1;
  const int num_columns = std::max(8, terminal.num_columns - label_columns - 2);
  const int keys_per_column = (num_keys + num_columns - 1) / num_columns;
  std::string out =
      Bold(terminal, absl::StrFormat("layer %d, head %d: %d %s per column, keys 0 to %d",
                                     last.layer(), last.head(), keys_per_column,
                                     keys_per_column == 1 ? "key" : "keys", num_keys - 1));
  out += '\n';
  for (size_t i = 0; i < rows.size(); ++i) {
    const v1::RowWeights& row = *rows[i];
    std::vector<double> columns(size_t(row.row() / keys_per_column) + 1);
    for (int k = 0; k < row.keys_size(); ++k) {
      columns[size_t(row.keys(k) / keys_per_column)] += std::fabs(double(row.weights(k)));
    }
    const int padding = label_columns - DisplayWidth(labels[i]);
    out += StrCat(labels[i], std::string(size_t(padding), ' '), " ");
    for (const double weight : columns) out += StrCat(Cell(weight, terminal));
    out += "|\n";  // the key of the row itself
  }
  return out;
}

std::string MapLegend(const Terminal& terminal) {
  return absl::StrFormat("blank: a weight under %.3f; brightest: %.2f or more",
                         MinWeight(1, terminal),
                         MinWeight(double(NumLevels(terminal) - 1), terminal));
}

}  // namespace lssar::cli
