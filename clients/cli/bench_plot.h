// A picture of a bench: latencies against load.
#ifndef LSSAR_CLIENTS_CLI_BENCH_PLOT_H_
#define LSSAR_CLIENTS_CLI_BENCH_PLOT_H_

#include <string>

#include "absl/status/status.h"
#include "clients/cli/bench_report.h"

namespace lssar::cli {

// An SVG with a panel each for TTFT, ITL and E2E: p50, p90 and p99 over the load.
// Requires  at least one point with a completed request
std::string RenderSvg(const BenchReport& report);

// Errors  PERMISSION_DENIED: the file cannot be written
absl::Status WriteText(const std::string& path, const std::string& text);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_PLOT_H_
