// The requests of a benchmark and when they arrive.
#ifndef LSSAR_CLIENTS_CLI_BENCH_WORKLOAD_H_
#define LSSAR_CLIENTS_CLI_BENCH_WORKLOAD_H_

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

// A Poisson process: arrivals do not wait for requests to finish.
class PoissonArrivals {
 public:
  // `rate` in requests per second, > 0. The same seed gives the same arrivals.
  PoissonArrivals(double rate, uint64_t seed) : random_(seed), gap_s_(rate) {}

  // Microseconds from the start to the next arrival; rises.
  int64_t NextUs() {
    now_s_ += gap_s_(random_);
    return int64_t(now_s_ * 1e6);
  }

 private:
  std::mt19937_64 random_;
  std::exponential_distribution<double> gap_s_;
  double now_s_ = 0;
};

// Tokens of prompts and of outputs.
class LengthDistribution {
 public:
  // "fixed:N" (or N), "uniform:A,B" (both ends included), "lognormal:MEAN,SIGMA" (MEAN of the
  // lengths, SIGMA of their natural logarithms). Lengths are in [1, 1048576]; SIGMA in [0, 4].
  // Errors  INVALID_ARGUMENT: anything else; names `flag`
  static absl::StatusOr<LengthDistribution> Parse(absl::string_view flag, absl::string_view text);

  // At least 1.
  int Draw(std::mt19937_64* random) const;

  // The longest possible length; nullopt: unbounded (lognormal).
  std::optional<int> Longest() const;

  // The text that was parsed.
  const std::string& Text() const { return text_; }

 private:
  LengthDistribution() = default;

  std::string text_;
  // uniform and fixed
  int low_ = 1;
  int high_ = 1;
  // lognormal if sigma is set; parameters of the logarithm
  double mu_ = 0;
  std::optional<double> sigma_;
};

struct BenchPrompt {
  std::string text;
  std::optional<int> max_tokens;  // nullopt: drawn
};

// JSON lines {"prompt": text, "max_tokens": n}, the second optional; empty lines are skipped.
// Errors  INVALID_ARGUMENT: names the line and the field
absl::StatusOr<std::vector<BenchPrompt>> ParseBenchPrompts(absl::string_view lines);

struct WorkloadOptions {
  LengthDistribution input;               // tokens of the prompt, without the shared prefix
  LengthDistribution output;              // tokens
  int num_prefix_tokens = 0;              // the same for all prompts that have the prefix
  double prefix_fraction = 1;             // share of the prompts that have the prefix
  std::vector<BenchPrompt> prompts = {};  // used in turn; empty: random token ids
  bool ignore_eos = true;
  float temperature = 0;
  bool use_prefix_cache = true;
  int stream_interval = 1;
  uint64_t seed = 1;
};

class BenchWorkload {
 public:
  // Errors  INVALID_ARGUMENT: lengths that do not fit in the served context (lognormal lengths are
  //         truncated to it); FAILED_PRECONDITION: the server reports no vocabulary
  static absl::StatusOr<BenchWorkload> Make(WorkloadOptions options,
                                            const v1::GetInfoReply& served);

  // Request `idx`. Depends on the options and `idx` only.
  v1::GenerateRequest Request(int64_t idx) const;

 private:
  BenchWorkload(WorkloadOptions options, const v1::GetInfoReply& served);
  void AddRandomIds(int count, std::mt19937_64* random, v1::TokenIds* tokens) const;
  void FillRandomPrompt(std::mt19937_64* random, v1::GenerateRequest* request) const;

  WorkloadOptions options_;
  int max_model_len_ = 0;
  std::optional<int> bos_id_;
  std::vector<int> ids_;  // ids of random prompts: all but BOS and EOS
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_WORKLOAD_H_
