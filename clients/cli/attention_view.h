// Attention to look at: bars of one row's largest weights, and maps of many rows.
#ifndef LSSAR_CLIENTS_CLI_ATTENTION_VIEW_H_
#define LSSAR_CLIENTS_CLI_ATTENTION_VIEW_H_

#include <string>
#include <vector>

#include "clients/cli/attention_call.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {

// A line of counts, then a line for each key that `row` names, the largest weight first, and one
// for all others together.
std::string RenderRow(const CapturedAttention& captured, const v1::RowWeights& row,
                      const Terminal& terminal);

// Rows downwards, keys from left to right, as many to a column as the terminal's width asks for:
// their weights' sum as a colour (terminal), a shade (no colours) or a sign (pipe).
// Requires  all of one layer and head, at least one
std::string RenderMap(const CapturedAttention& captured,
                      const std::vector<const v1::RowWeights*>& rows, const Terminal& terminal);

// How RenderMap's columns read, in a line.
std::string MapLegend(const Terminal& terminal);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_ATTENTION_VIEW_H_
