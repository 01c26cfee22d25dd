// What the requests of a bench add up to, as `vllm bench serve` defines it.
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

// The value below which `share` of the sorted values lie, linear between the two nearest ranks:
// rank share * (n - 1), as numpy's default. Requires  not empty, rising; share in [0, 1]
double Percentile(const std::vector<double>& sorted, double share);

// Milliseconds; of no samples: count 0, and the rest means nothing.
struct LatencyDistribution {
  int64_t count = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};

LatencyDistribution Distribute(std::vector<double> samples_ms);

// A request is good when it completed within all that are set; milliseconds.
struct LatencyTargets {
  std::optional<double> ttft_ms = {};
  std::optional<double> tpot_ms = {};
  std::optional<double> e2e_ms = {};

  bool Any() const { return ttft_ms || tpot_ms || e2e_ms; }
};

// "ttft:200ms,tpot:50ms,e2e:2s"; empty: none.
// Errors  INVALID_ARGUMENT: names the entry
absl::StatusOr<LatencyTargets> ParseLatencyTargets(absl::string_view flag, absl::string_view list);

struct LoadSummary {
  double duration_s = 0;  // from the first counted request's time to the last one's end
  int64_t num_completed = 0;
  int64_t num_good = 0;
  // Of completed requests.
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;
  // From the time that the request was due.
  LatencyDistribution ttft;  // to its first token
  LatencyDistribution e2e;   // to its last token
  // Of a request: from first to last message with tokens, by the tokens after the first message.
  LatencyDistribution tpot;
  // One sample a token after a request's first message. Tokens that came in one message share the
  // time since the message before: the server merges what a slow reader has not taken, and nobody
  // can tell when each was made.
  LatencyDistribution itl;
  // One sample a message: how long the reader waited, however much came then.
  LatencyDistribution gap;
  // How late requests were sent: this program's own fault, and part of the latencies.
  LatencyDistribution lag;
  // Of failed requests, from sending to the status.
  std::map<std::string, LatencyDistribution> failures;  // by code

  int64_t NumFailed() const;
  double PerSecond(int64_t count) const;
};

// Of the records that are no warm-up.
LoadSummary Summarise(const std::vector<BenchRecord>& records, const LatencyTargets& targets);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_STATISTICS_H_
