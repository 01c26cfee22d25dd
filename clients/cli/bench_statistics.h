// Statistics of a benchmark, as `vllm bench serve` defines them.
#ifndef LSSAR_CLIENTS_CLI_BENCH_STATISTICS_H_
#define LSSAR_CLIENTS_CLI_BENCH_STATISTICS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/bench_load.h"

namespace lssar::cli {

// Linear between the two values nearest to rank share * (n - 1), as numpy's default.
// Requires  `sorted` is not empty and rises; share in [0, 1]
double Percentile(const std::vector<double>& sorted, double share);

// Milliseconds. Without samples count is 0 and the rest is undefined.
struct LatencyDistribution {
  int64_t count = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};

LatencyDistribution Distribute(std::vector<double> samples_ms);

// A request is good if it completed within all targets that are set; milliseconds.
struct LatencyTargets {
  std::optional<double> ttft_ms = {};
  std::optional<double> tpot_ms = {};
  std::optional<double> e2e_ms = {};

  bool Any() const { return ttft_ms || tpot_ms || e2e_ms; }
};

// "ttft:200ms,tpot:50ms,e2e:2s"; a number without a unit is milliseconds, and e2el is e2e, as in
// `vllm bench serve`. Empty: none.
// Errors  INVALID_ARGUMENT: names the entry
absl::StatusOr<LatencyTargets> ParseLatencyTargets(absl::string_view flag, absl::string_view list);

struct LoadSummary {
  double duration_s = 0;  // from the first counted request to the end of the last one
  int64_t num_completed = 0;
  int64_t num_good = 0;
  // Sums over the completed requests.
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;
  // From the time the request was due.
  LatencyDistribution ttft;  // to its first token
  LatencyDistribution e2e;   // to its last token
  // Time from the first to the last message with tokens, per token after the first message.
  LatencyDistribution tpot;
  // One sample per token after the first message. Tokens of one message share the time since the
  // message before: the server merges messages for a slow reader, so the time of each token is not
  // known.
  LatencyDistribution itl;
  // One sample per message: the time since the message before.
  LatencyDistribution gap;
  // Delay between due and sent, caused by this program; part of the latencies.
  LatencyDistribution lag;
  // Failed requests, from sending to the status.
  std::map<std::string, LatencyDistribution> failures;  // by code

  int64_t NumFailed() const;
  double PerSecond(int64_t count) const;
};

// Ignores the records of the warmup.
LoadSummary Summarise(const std::vector<BenchRecord>& records, const LatencyTargets& targets);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_STATISTICS_H_
