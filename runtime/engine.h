// The engine: one thread that owns the model step, the pages and the batch.
#ifndef LSSAR_RUNTIME_ENGINE_H_
#define LSSAR_RUNTIME_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/request.h"

namespace lssar {

struct EngineOptions {
  int max_context = 16384;  // tokens of prompt and output together
  // Running at once, choices of one request counted one by one; never more than step_tokens, so
  // that each has a row in every step.
  int max_sequences = 64;
  int max_queued_requests = 64;
  int step_tokens = 512;  // rows of one step at most; decode rows come first
  int page_tokens = 64;
  DType kv_type = DType::kF16;
  // Bytes of the page pool; 0: four sequences of max_context, at most half of the machine's
  // available memory.
  int64_t kv_bytes = 0;
};

// A point-in-time view for GetInfo and tests.
struct EngineStats {
  bool is_serving = true;  // false: draining, stopped, or the backend failed for good
  int num_running = 0;     // requests
  int num_queued = 0;      // requests
  int num_pages = 0;
  int num_free_pages = 0;
  int64_t num_steps = 0;
  int64_t num_prompt_tokens = 0;     // computed since start
  int64_t num_generated_tokens = 0;  // since start
  AttentionCounters attention;
};

class Engine {
 public:
  // Cancels a submitted request; copyable, outlives the request and the engine.
  class Handle {
   public:
    Handle() = default;  // names no request
    explicit Handle(std::shared_ptr<std::atomic<bool>> cancelled)
        : cancelled_(std::move(cancelled)) {}

    // Any thread, never blocks. The request ends with CANCELLED, if it has not ended by then, and
    // its pages are free one step later.
    void Cancel() const {
      if (cancelled_ != nullptr) cancelled_->store(true, std::memory_order_relaxed);
    }

   private:
    std::shared_ptr<std::atomic<bool>> cancelled_;
  };

  // `checkpoint` and `backend` must outlive the engine. The thread starts at once.
  // Errors  INVALID_ARGUMENT: an option out of range, or step_tokens over what the checkpoint was
  //         loaded for (LoadOptions::max_batch_rows); RESOURCE_EXHAUSTED: the page pool does not
  //         fit into memory or does not hold one sequence of max_context.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Checkpoint* checkpoint, Backend* backend,
                                                        const EngineOptions& options);
  // As Drain(zero).
  virtual ~Engine() = default;

  // Any thread, never blocks. No call of the sink comes from inside.
  // Requires  a validated request (request.h)
  // Errors    RESOURCE_EXHAUSTED: the queue is full; UNAVAILABLE: draining, stopped, or the backend
  //           failed for good; INVALID_ARGUMENT: prompt + max_tokens beyond max_context, or choices
  //           or pages that can never be had (the message shows the arithmetic);
  //           FAILED_PRECONDITION: stop strings, but the checkpoint has no tokenizer.
  virtual absl::StatusOr<Handle> Submit(Request request, std::shared_ptr<TokenSink> sink) = 0;

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
