// Runs llama.cpp's own benches as child processes, for comparison.
#ifndef LSSAR_TESTS_BENCH_PEER_LLAMA_H_
#define LSSAR_TESTS_BENCH_PEER_LLAMA_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace lssar::bench {

struct PeerResult {
  double tokens_per_second = 0;  // median of llama-bench's own repetitions
  // Largest resident set of the child; with "best" that with flash attention, which needs less.
  int64_t peak_bytes = 0;
  // What the program says of itself: build_commit, cpu_info, type_k, type_v, flash_attn, n_threads,
  // as far as it does.
  nlohmann::json program = nlohmann::json::object();
};

// A greedy text of llama-lookup.
struct PeerText {
  double tokens_per_second = 0;  // after the prompt
  int num_draft_tokens = 0;
  int num_accepted_tokens = 0;
  std::string output;  // all that the program printed: the prompt, the text, its log
};

// llama.cpp's name of the cache type with as many bits as ours: -ctk and -ctv.
// Requires  HoldsKv(kv)
std::string_view PeerCacheType(DType kv);

struct PeerOptions {
  // Path of the program; llama-batched-bench and llama-lookup must be in the same folder.
  std::string llama_bench;
  int num_threads = 0;
  int num_repeats = 1;
  // "on", "off", "auto" (llama.cpp's default), or "best": the faster of on and off. llama.cpp has a
  // quantized cache with flash attention alone, so "best" is "on" with one.
  std::string flash_attention = "best";
  std::string cache_type = "f16";  // as PeerCacheType gives it
};

class PeerLlama {
 public:
  explicit PeerLlama(PeerOptions options) : options_(std::move(options)) {}

  const std::string& CacheType() const { return options_.cache_type; }

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
  // lookup; 0: no drafts. Runs once (with "best" twice).
  absl::StatusOr<PeerText> Lookup(const std::string& gguf, const std::string& prompt_file,
                                  int num_prompt_tokens, int num_tokens,
                                  int num_draft_tokens) const;

 private:
  std::string Program(const char* name) const;
  absl::StatusOr<PeerResult> LlamaBench(std::vector<std::string> arguments) const;
  absl::StatusOr<PeerResult> BatchedBench(std::vector<std::string> arguments) const;
  absl::StatusOr<PeerResult> RunBatched(std::vector<std::string> arguments) const;
  // Appends the cache's types and flash attention to `arguments`, and runs them.
  absl::StatusOr<PeerResult> Fastest(
      std::vector<std::string> arguments,
      const std::function<absl::StatusOr<PeerResult>(std::vector<std::string>)>& run) const;

  PeerOptions options_;
};

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_PEER_LLAMA_H_
