// Shows attention weights: bars for one row, maps for many rows.
#ifndef LSSAR_CLIENTS_CLI_ATTENTION_VIEW_H_
#define LSSAR_CLIENTS_CLI_ATTENTION_VIEW_H_

#include <string>
#include <vector>

#include "clients/cli/rpc_calls.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {

// A line of counts, then a line for each key of `row`, the largest weight first, and one line for
// all keys that top_k left out.
std::string RenderRow(const CapturedAttention& captured, const v1::RowWeights& row,
                      const Terminal& terminal);

// Rows go downwards, keys from left to right. A column sums as many keys as the terminal's width
// requires and shows a colour (terminal), a shade (no colours) or a character (pipe).
// Requires  at least one row; all rows are of one layer and head
std::string RenderMap(const CapturedAttention& captured,
                      const std::vector<const v1::RowWeights*>& rows, const Terminal& terminal);

// One line that explains the columns of RenderMap.
std::string MapLegend(const Terminal& terminal);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_ATTENTION_VIEW_H_
