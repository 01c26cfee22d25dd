// The results of a benchmark as JSON, tables and bars.
#ifndef LSSAR_CLIENTS_CLI_BENCH_REPORT_H_
#define LSSAR_CLIENTS_CLI_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "clients/cli/bench_statistics.h"
#include "clients/cli/terminal.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {

// One load and its results.
struct BenchPoint {
  double load = 0;
  LoadSummary summary;
};

struct BenchReport {
  bool is_open_loop = false;  // loads are requests per second; otherwise requests in flight
  bool has_targets = false;   // otherwise goodput is undefined
  std::vector<BenchPoint> points = {};
};

// "rate" or "concurrency".
std::string LoadName(const BenchReport& report);

// A list with an object per point. The schema is stable. Times are milliseconds, null without
// samples.
nlohmann::ordered_json PointsToJson(const BenchReport& report);

// Throughput, errors by code and latencies.
std::string RenderReport(const BenchReport& report);

// Bars of TTFT and ITL: full to p50, light to p99. Empty if no request completed.
std::string RenderBars(const BenchReport& report, const Terminal& terminal);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_REPORT_H_
