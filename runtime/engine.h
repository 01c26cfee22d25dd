// The engine: one thread that owns the model step, the pages and the batch.
#ifndef LSSAR_RUNTIME_ENGINE_H_
#define LSSAR_RUNTIME_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/request.h"

namespace lssar {

class RequestQueue;

// Told of steps as they end, of those that ran rows.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnStep(int num_rows) = 0;
};

struct EngineOptions {
  int max_model_len = 16384;  // tokens of prompt and output together
  // Running at once, choices of one request counted one by one; never more than max_num_batched_tokens, so
  // that each has a row in every step.
  int max_num_seqs = 64;
  int max_queued_requests = 64;
  // Prompt tokens (score: context and continuations) that may wait; an empty queue takes any
  // request. 0: 16 times max_model_len.
  int64_t max_queued_tokens = 0;
  int max_num_batched_tokens = 512;  // rows of one step at most; decode rows come first
  // Of a step in which others decode: prompts that advance, and the rows of all of them together at
  // most. Rows deep in a long prompt cost more and count for more (scheduler.h).
  int max_num_partial_prefills = 16;
  int chunked_prefill_size = 32;
  bool enable_prefix_caching = true;  // false: for every request as if use_prefix_cache were false
  int page_size = 64;
  DType kv_cache_dtype = DType::kF16;
  // Bytes of the page pool; 0: four sequences of max_model_len, at most half of the machine's
  // available memory; on a device with memory of its own max_num_seqs of max_model_len, at most
  // what is free less a reserve (kv_cache.cc).
  int64_t kv_cache_bytes = 0;
  // Hears of every step, on the engine's thread; must not block, must outlive the engine.
  StepObserver* observer = nullptr;
};

// Of the engine's thread, by stage of its step. A device that computes behind the host's back is
// handed its work in `forward` and waited for in `sample`.
struct StageTimes {
  int64_t admit_ns = 0, schedule_ns = 0, forward_ns = 0, sample_ns = 0, output_ns = 0;
  int64_t idle_ns = 0;  // no work
};

// A point-in-time view for GetInfo, GetStats, metrics, the watchdog and tests.
struct EngineStats {
  bool is_serving = true;       // false: draining, stopped, or the backend failed for good
  bool is_device_lost = false;  // it refuses every further call of this process
  int num_running = 0;          // requests
  int num_waiting = 0;          // requests
  int64_t num_waiting_tokens = 0;
  int num_pages = 0;
  int num_free_pages = 0;    // held by no one and not cached
  int num_cached_pages = 0;  // cached and held by no one: can be had at any time
  // Since start.
  int64_t num_steps = 0;
  int64_t num_batched_tokens = 0;
  int64_t num_prompt_tokens = 0;  // computed
  int64_t num_generated_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t num_prefix_cache_queries = 0;  // tokens looked up
  int64_t num_prefix_cache_hits = 0;     // tokens found
  AttentionStats attention = {};
  StageTimes stages = {};
  // Begin of the step under way; nullopt: none is. One that lies far back: the engine hangs.
  std::optional<Clock::time_point> step_started_at = {};
};

class Engine {
 public:
  // Of a submitted request; copyable, outlives the request and the engine. Any thread, never
  // blocks.
  class Handle {
   public:
    Handle() = default;  // names no request
    Handle(std::shared_ptr<std::atomic<bool>> cancelled, std::shared_ptr<RequestQueue> queue)
        : cancelled_(std::move(cancelled)), queue_(std::move(queue)) {}

    // The request ends with CANCELLED, if it has not ended by then, and its pages are free one step
    // later.
    void Cancel() const;

    // OutputSink::IsWritable may have become true: a sleeping engine asks it again.
    void Resume() const;

   private:
    std::shared_ptr<std::atomic<bool>> cancelled_;
    std::shared_ptr<RequestQueue> queue_;
  };

  // `checkpoint` and `backend` must outlive the engine. The thread starts at once.
  // Errors  INVALID_ARGUMENT: an option out of range, or max_num_batched_tokens over what the checkpoint was
  //         loaded for (LoadOptions::max_num_batched_tokens); RESOURCE_EXHAUSTED: the page pool does not
  //         fit into memory or does not hold one sequence of max_model_len.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Checkpoint* checkpoint, Backend* backend,
                                                        const EngineOptions& options);
  // As Drain(zero).
  virtual ~Engine() = default;

  // Any thread, never blocks. No call of the sink comes from inside.
  // Requires  a validated request (request.h)
  // Errors    RESOURCE_EXHAUSTED: the queue is full; UNAVAILABLE: draining, stopped, or the backend
  //           failed for good; INVALID_ARGUMENT: prompt + max_tokens beyond max_model_len, or choices
  //           or pages that can never be had (the message shows the arithmetic);
  //           FAILED_PRECONDITION: stop strings, but the checkpoint has no tokenizer.
  virtual absl::StatusOr<Handle> Submit(Request request, std::shared_ptr<OutputSink> sink) = 0;

  // Whether Submit would take a request now, before all the work of reading one. Any thread.
  // Errors  RESOURCE_EXHAUSTED, UNAVAILABLE: as Submit
  virtual absl::Status CheckQueueCapacity() const = 0;

  // Refuses new requests, waits until the accepted ones are done or `limit` has passed, then ends
  // what is left with UNAVAILABLE. True: nothing had to be cut. Stops the thread; a second call
  // waits for the first one's end. Not from a sink.
  virtual bool Drain(absl::Duration limit) = 0;

  virtual EngineStats Stats() const = 0;
  virtual const EngineOptions& Options() const = 0;
  virtual const Checkpoint& Model() const = 0;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ENGINE_H_
