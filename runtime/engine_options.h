// How an engine is set up.
#ifndef LSSAR_RUNTIME_ENGINE_OPTIONS_H_
#define LSSAR_RUNTIME_ENGINE_OPTIONS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/dtype.h"

namespace lssar {

class Proposer;
struct Checkpoint;

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // After each step that computed tokens.
  virtual void OnStep(int num_batched_tokens) = 0;
  // The sinks have got what they get for now: the model runs, a step has ended, or the requests
  // were aborted. May be called without any result.
  virtual void OnResults() {}
};

enum class SpeculativeMethod : uint8_t {
  kOff,
  kNgram,       // drafts what followed the last tokens where they occurred before in the sequence
  kDraftModel,  // EngineOptions::draft_checkpoint drafts
};

struct EngineOptions {
  int max_model_len = 16384;  // tokens of prompt and output together
  // Sequences that run at the same time; every choice of a request counts. The engine never runs
  // more than max_num_batched_tokens, so that each sequence gets a token in every step.
  int max_num_seqs = 64;
  int max_queued_requests = 64;
  // Prompt tokens (score: context and longest continuation) of all waiting requests together. An
  // empty queue takes any request. 0: 16 times max_model_len.
  int64_t max_queued_tokens = 0;
  int max_num_batched_tokens = 512;  // tokens of one step; decodes are scheduled first
  // In a step in which other sequences decode: prompts that advance, and the tokens of all of them
  // together. Tokens deep in a long prompt cost more and count for more (token_budget.h).
  int max_num_partial_prefills = 16;
  int chunked_prefill_size = 32;
  bool enable_prefix_caching = true;  // false: every request runs as if use_prefix_cache were false
  int page_size = 64;
  DType kv_cache_dtype = DType::kF16;
  // Bytes of the page pool. 0 on a host: four sequences of max_model_len, at most half of the
  // available memory. 0 on a device with its own memory: max_num_seqs sequences of max_model_len,
  // at most the free memory less a reserve (kv_cache.cc).
  int64_t kv_cache_bytes = 0;
  // Steps from one sample of attention statistics to the next; 0: none. A sample reads the keys of
  // one row in one head, at 0.2 us a key.
  int attention_sample_interval = 0;
  SpeculativeMethod speculative_method = SpeculativeMethod::kOff;
  int num_speculative_tokens = 16;  // draft tokens of a sequence in one step, at most
  // Tokens at the end of the sequence that must occur before, at least; more than prompt_lookup_max
  // are not compared.
  int prompt_lookup_min = 3;
  int prompt_lookup_max = 8;
  // The model that drafts with kDraftModel, on the engine's backend; must outlive the engine.
  Checkpoint* draft_checkpoint = nullptr;
  // False: drafts as many tokens as the bounds allow, whatever they cost. For tests and benches.
  bool adapts_speculation = true;
  // Makes drafts in place of `speculative_method`; must outlive the engine. For tests and benches.
  Proposer* proposer = nullptr;
  // Called on the engine's thread. Must not block and must outlive the engine.
  StepObserver* observer = nullptr;
};

// Sequences that may run at the same time.
inline int MaxRunning(const EngineOptions& options) {
  return std::min(options.max_num_seqs, options.max_num_batched_tokens);
}

// The bound of prompt tokens that wait.
inline int64_t MaxQueuedTokens(const EngineOptions& options) {
  constexpr int64_t kDefaultFullContexts = 16;
  if (options.max_queued_tokens > 0) return options.max_queued_tokens;
  return kDefaultFullContexts * options.max_model_len;
}

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ENGINE_OPTIONS_H_
