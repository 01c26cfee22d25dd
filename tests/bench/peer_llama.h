// Runs llama.cpp's own benches as child processes, for comparison.
#ifndef LSSAR_TESTS_BENCH_PEER_LLAMA_H_
#define LSSAR_TESTS_BENCH_PEER_LLAMA_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar::bench {

struct PeerResult {
  double tokens_per_second = 0;  // median of llama-bench's own repetitions
  int64_t peak_bytes = 0;        // largest resident set of the child
};

// A greedy text of llama-lookup.
struct PeerText {
  double tokens_per_second = 0;  // after the prompt
  int num_draft_tokens = 0;
  int num_accepted_tokens = 0;
  std::string output;  // all that the program printed: the prompt, the text, its log
};

class PeerLlama {
 public:
  // `llama_bench`: path of the program; llama-batched-bench and llama-lookup must be in the same
  // folder.
  // `flash_attention`: "on", "off", "auto" (llama.cpp's default), or "best": the faster of on and
  // off, except in Lookup.
  PeerLlama(std::string llama_bench, int num_threads, int num_repeats,
            std::string flash_attention = "auto")
      : llama_bench_(std::move(llama_bench)),
        num_threads_(num_threads),
        num_repeats_(num_repeats),
        flash_attention_(std::move(flash_attention)) {}

  // Errors  INTERNAL: the child failed, or its output cannot be parsed.
  absl::StatusOr<PeerResult> Prefill(const std::string& gguf, int depth, int num_tokens) const;
  absl::StatusOr<PeerResult> Decode(const std::string& gguf, int depth, int num_tokens) const;
  absl::StatusOr<PeerResult> BatchedDecode(const std::string& gguf, int num_sequences, int depth,
                                           int num_tokens) const;
  // One step computes `num_rows` tokens after the same `depth` cached ones, each with its logits:
  // what verifying a draft costs. (They are sequences that share a prompt: llama.cpp's benches have
  // no such rows of one sequence.)
  absl::StatusOr<PeerResult> Rows(const std::string& gguf, int num_rows, int depth,
                                  int num_steps) const;
  // Continues the text of `prompt_file` with drafts of up to `num_draft_tokens` from an n-gram
  // lookup; 0: no drafts. Runs once.
  absl::StatusOr<PeerText> Lookup(const std::string& gguf, const std::string& prompt_file,
                                  int num_prompt_tokens, int num_tokens,
                                  int num_draft_tokens) const;

 private:
  std::string Program(const char* name) const;
  absl::StatusOr<PeerResult> LlamaBench(std::vector<std::string> arguments) const;
  absl::StatusOr<PeerResult> BatchedBench(std::vector<std::string> arguments) const;
  absl::StatusOr<PeerResult> RunBatched(std::vector<std::string> arguments) const;
  absl::StatusOr<PeerResult> Fastest(
      std::vector<std::string> arguments,
      const std::function<absl::StatusOr<PeerResult>(std::vector<std::string>)>& run) const;

  std::string llama_bench_;
  int num_threads_;
  int num_repeats_;
  std::string flash_attention_;
};

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_PEER_LLAMA_H_
