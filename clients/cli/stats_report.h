// What GetStats says, for `lssar info --stats`.
#ifndef LSSAR_CLIENTS_CLI_STATS_REPORT_H_
#define LSSAR_CLIENTS_CLI_STATS_REPORT_H_

#include <string>

#include "lssar/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {

// Field by field as in the proto.
nlohmann::ordered_json StatsToJson(const v1::GetStatsReply& reply);

// A table of what runs, what was done, how calls ended, and where the engine's time went.
std::string StatsTable(const v1::GetStatsReply& reply);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_STATS_REPORT_H_
