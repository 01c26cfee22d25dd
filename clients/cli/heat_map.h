// A grid of shares as colours (terminal), shades (no colours) or digits (pipe).
#ifndef LSSAR_CLIENTS_CLI_HEAT_MAP_H_
#define LSSAR_CLIENTS_CLI_HEAT_MAP_H_

#include <string>
#include <vector>

#include "clients/cli/terminal.h"

namespace lssar::cli {

struct HitCount {
  int num_hits = 0;
  int num_trials = 0;  // 0: nothing is known, and nothing is shown

  void Add(bool is_hit) {
    ++num_trials;
    num_hits += is_hit ? 1 : 0;
  }
  // [0, 1]; 0 without trials.
  double Share() const { return num_trials == 0 ? 0 : static_cast<double>(num_hits) / num_trials; }
};

struct HeatMap {
  std::string corner;  // names both axes, "depth \ length"
  std::vector<std::string> row_labels;
  std::vector<std::string> column_labels;
  std::vector<std::vector<HitCount>> cells;  // [row][column]
};

// Each known cell holds the share of hits in percent.
std::string RenderHeatMap(const HeatMap& map, const Terminal& terminal);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_HEAT_MAP_H_
