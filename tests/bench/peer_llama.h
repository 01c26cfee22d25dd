// Runs llama.cpp's own benches as child processes, for comparison.
#ifndef LSSAR_TESTS_BENCH_PEER_LLAMA_H_
#define LSSAR_TESTS_BENCH_PEER_LLAMA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar::bench {

struct PeerResult {
  double tokens_per_second = 0;  // median of llama-bench's own repetitions
  int64_t peak_bytes = 0;        // largest resident set of the child
};

class PeerLlama {
 public:
  // `llama_bench`: path of the program; llama-batched-bench must be in the same folder.
  PeerLlama(std::string llama_bench, int num_threads, int num_repeats)
      : llama_bench_(std::move(llama_bench)),
        num_threads_(num_threads),
        num_repeats_(num_repeats) {}

  // Errors  INTERNAL: the child failed, or its output cannot be parsed.
  absl::StatusOr<PeerResult> Prefill(const std::string& gguf, int num_tokens) const;
  absl::StatusOr<PeerResult> Decode(const std::string& gguf, int depth, int num_tokens) const;
  absl::StatusOr<PeerResult> BatchedDecode(const std::string& gguf, int num_sequences, int depth,
                                           int num_tokens) const;

 private:
  std::string llama_bench_;
  int num_threads_;
  int num_repeats_;
};

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_PEER_LLAMA_H_
