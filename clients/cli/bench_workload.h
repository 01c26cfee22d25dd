// What the requests of a bench ask for.
#ifndef LSSAR_CLIENTS_CLI_BENCH_WORKLOAD_H_
#define LSSAR_CLIENTS_CLI_BENCH_WORKLOAD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/bench_lengths.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

struct BenchPrompt {
  std::string text;
  std::optional<int> max_tokens;  // nullopt: drawn
};

// JSON lines {"prompt": text, "max_tokens": n}, the second optional; empty lines are skipped.
// Errors  INVALID_ARGUMENT: names the line and the field
absl::StatusOr<std::vector<BenchPrompt>> ParseBenchPrompts(absl::string_view lines);

struct WorkloadOptions {
  LengthDistribution input;    // tokens of the prompt after what is shared
  LengthDistribution output;   // tokens
  int num_shared_tokens = 0;   // that prompts begin with, ...
  double shared_fraction = 1;  // ... as many of them as this share
  std::vector<BenchPrompt> prompts =
      {};  // taken in order, round and round; empty: random token ids
  bool ignore_eos = true;
  float temperature = 0;
  bool use_prefix_cache = true;
  int stream_interval = 1;
  uint64_t seed = 1;
};

class BenchWorkload {
 public:
  // `served`: what the server says about itself.
  // Errors  INVALID_ARGUMENT: lengths that the served context cannot hold. Lognormal lengths are
  //         cut to what it holds. FAILED_PRECONDITION: the server names no vocabulary
  static absl::StatusOr<BenchWorkload> Make(WorkloadOptions options,
                                            const v1::GetInfoReply& served);

  // The request of this place: the same for the same options, whatever else was asked for.
  v1::GenerateRequest Request(int64_t idx) const;

 private:
  BenchWorkload(WorkloadOptions options, const v1::GetInfoReply& served);
  void AddRandomIds(int count, std::mt19937_64* random, v1::TokenIds* tokens) const;
  void FillRandomPrompt(std::mt19937_64* random, v1::GenerateRequest* request) const;

  WorkloadOptions options_;
  int max_model_len_ = 0;
  std::optional<int> bos_id_;
  std::vector<int> ids_;  // that random prompts are made of
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_WORKLOAD_H_
