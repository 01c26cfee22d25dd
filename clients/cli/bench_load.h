// Sends the requests of a benchmark, open or closed loop, and records when replies arrive.
#ifndef LSSAR_CLIENTS_CLI_BENCH_LOAD_H_
#define LSSAR_CLIENTS_CLI_BENCH_LOAD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/bench_workload.h"
#include "clients/cli/interrupt.h"

namespace lssar::cli {

class Service;

// The time between two messages with tokens.
struct TokenGap {
  int64_t us = 0;
  int num_tokens = 0;  // of the later message, >= 1
};

// One request. Times are microseconds from the start of the load; -1: not received.
struct BenchRecord {
  bool is_warmup = false;
  // When it was due: latencies count from here. In a closed loop: when it was sent.
  int64_t due_us = 0;
  int64_t sent_us = 0;
  int64_t first_token_us = -1;
  int64_t last_token_us = -1;
  int64_t ended_us = 0;
  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;
  int num_output_tokens = 0;
  int num_first_tokens = 0;  // of the first message with tokens
  std::vector<TokenGap> gaps = {};
  absl::StatusCode code = absl::StatusCode::kOk;
};

struct LoadPlan {
  // Exactly one of the two.
  std::optional<double> rate;      // open loop: Poisson arrivals, requests per second
  std::optional<int> concurrency;  // closed loop: requests in flight at all times
  // Requests that are due during the warmup are sent and not counted.
  std::chrono::microseconds warmup{0};
  // Requests are counted for `duration`, or until `num_requests` are sent.
  std::chrono::microseconds duration{0};
  std::optional<int64_t> num_requests;
  std::optional<std::chrono::microseconds> deadline;  // of each request
  uint64_t seed = 1;                                  // of the arrivals
  std::string cache_salt;
};

struct LoadProgress {
  double share = 0;  // of the plan, [0, 1]
  int64_t num_ended = 0;
  int64_t num_failed = 0;
  int64_t num_running = 0;
  int64_t num_tokens = 0;  // of output
};

// Returns when every request has ended. In a closed loop the slot of a refused request
// (RESOURCE_EXHAUSTED, UNAVAILABLE) stays empty for the time that the refusal states. Calls
// `on_progress` on this thread, several times per second.
// Errors  CANCELLED: interrupted
absl::StatusOr<std::vector<BenchRecord>> RunLoad(
    Service* stub, const BenchWorkload& workload, const LoadPlan& plan, Interrupt* interrupt,
    const std::function<void(const LoadProgress&)>& on_progress);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_LOAD_H_
