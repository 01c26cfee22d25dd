// The results of a bench as JSON, tables and a chart.
#ifndef LSSAR_CLIENTS_CLI_BENCH_REPORT_H_
#define LSSAR_CLIENTS_CLI_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "clients/cli/bench_statistics.h"
#include "clients/cli/terminal.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {

// One load and what came of it.
struct BenchPoint {
  double load = 0;
  LoadSummary summary;
};

struct BenchReport {
  bool is_open_loop = false;  // loads are rates (requests a second); else requests under way
  bool has_targets = false;   // else every completed request is good, and goodput says nothing
  std::vector<BenchPoint> points = {};
};

// "rate" or "concurrency".
std::string LoadName(const BenchReport& report);

// A list, an object a point. The schema is part of the program's contract; times are milliseconds,
// null where there is no sample.
nlohmann::ordered_json PointsToJson(const BenchReport& report);

// Throughput, errors by code and latencies.
std::string RenderReport(const BenchReport& report);

// Bars of TTFT and ITL: full to p50, light to p99. Empty when nothing completed.
std::string RenderBars(const BenchReport& report, const Terminal& terminal);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_REPORT_H_
