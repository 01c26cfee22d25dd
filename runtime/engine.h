// The engine: continuous batching on one thread. Requests go in through Submit, results come out
// through sinks.
#ifndef LSSAR_RUNTIME_ENGINE_H_
#define LSSAR_RUNTIME_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/engine_options.h"
#include "runtime/engine_stats.h"
#include "runtime/request.h"

namespace lssar {

class BlockManager;
class DraftModel;
class KvCache;
class ModelRunner;
class RequestQueue;
class Scheduler;
class Speculator;
struct ScheduledSequence;
struct SequenceGroup;

class Engine {
 public:
  using Now = std::function<Clock::time_point()>;

  // A submitted request. Copyable; may outlive the request and the engine.
  // Threads   any; never blocks
  class Handle {
   public:
    Handle() = default;  // no request
    Handle(std::shared_ptr<std::atomic<bool>> cancelled, std::shared_ptr<RequestQueue> queue)
        : cancelled_(std::move(cancelled)), queue_(std::move(queue)) {}

    // The request ends with CANCELLED in the next step, unless it has ended before, and its pages
    // are freed.
    void Cancel() const;

    // OutputSink::IsWritable may have become true: a sleeping engine asks it again.
    void Resume() const;

   private:
    std::shared_ptr<std::atomic<bool>> cancelled_;
    std::shared_ptr<RequestQueue> queue_;
  };

  // `checkpoint` and `backend` must outlive the engine. Its thread starts at once.
  // Errors  INVALID_ARGUMENT: an option is out of range, or max_num_batched_tokens is over
  //         LoadOptions::max_num_batched_tokens of the checkpoint; RESOURCE_EXHAUSTED: the page
  //         pool does not fit into memory, or does not hold one sequence of max_model_len; those of
  //         DraftModel::Create
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Checkpoint* checkpoint, Backend* backend,
                                                        const EngineOptions& options);
  // An engine without a thread: the caller runs it by calling Step. `now` gives the time of
  // everything that the engine does and measures. For tests and simulations.
  // Errors  as Create
  static absl::StatusOr<std::unique_ptr<Engine>> CreateStepped(Checkpoint* checkpoint,
                                                               Backend* backend,
                                                               const EngineOptions& options,
                                                               Now now = Clock::now);
  // Drains with a limit of zero.
  ~Engine();

  // Makes no call of the sink itself. `tenant`: whose request it is. Tenants share places, pages,
  // steps and the queue equally (DESIGN.md).
  // Threads   any; never blocks
  // Requires  a validated request (request.h)
  // Errors    RESOURCE_EXHAUSTED: the queue is full; UNAVAILABLE: draining, stopped, or the backend
  //           failed for good; INVALID_ARGUMENT: the request can never be admitted (CheckFits);
  //           FAILED_PRECONDITION: stop strings, but the checkpoint has no tokenizer
  absl::StatusOr<Handle> Submit(Request request, std::shared_ptr<OutputSink> sink,
                                std::string tenant = {});

  // Whether Submit would accept the tenant's request now; by default a small one. Callers check it
  // before they parse, or copy, a request.
  // Threads  any
  // Errors   RESOURCE_EXHAUSTED, UNAVAILABLE: as Submit
  absl::Status CheckQueueCapacity(std::string_view tenant = {},
                                  const Request& request = Request()) const;

  // Refuses new requests, waits until the accepted ones are done or `limit` has passed, then ends
  // the others with UNAVAILABLE and stops the thread. True: no request was aborted. A second call
  // waits for the end of the first. An engine without a thread aborts its requests at once.
  // Threads   any, except from a sink
  bool Drain(absl::Duration limit);

  // Threads   any
  EngineStats Stats() const;
  // For the heads that were sampled (EngineOptions::attention_sample_interval).
  // Threads   any
  std::vector<HeadStatistics> SampledAttention() const;
  const EngineOptions& Options() const { return options_; }
  const Checkpoint& Model() const { return *checkpoint_; }

  // One step: schedule, run the model, publish the results.
  // Requires  an engine without a thread
  // Errors    INTERNAL: the backend's; the requests of the step have ended with it
  absl::Status Step();
  // Ends all open requests, waiting or running, with `status`. Their number.
  // Requires  an engine without a thread
  int AbortAll(const absl::Status& status);

  // For tests that check the engine's state between steps.
  const Scheduler& GetScheduler() const { return *scheduler_; }
  BlockManager& GetBlockManager() { return *blocks_; }
  const RequestQueue& GetRequestQueue() const { return *waiting_; }
  const KvView& GetKvView() const;
  // Null: there is none. Threads: Model and Layout any, the others only between steps.
  const DraftModel* GetDraftModel() const { return draft_model_.get(); }

 private:
  Engine(Checkpoint* checkpoint, Backend* backend, std::unique_ptr<KvCache> kv_cache,
         std::unique_ptr<DraftModel> draft_model, const EngineOptions& options, Now now);

  // The thread.
  void Run();
  // False: stopped.
  bool WaitForWork();

  // Stages of a step.
  void AdmitRequests();
  std::span<ScheduledSequence> Schedule();
  absl::Status RunModel(std::span<ScheduledSequence> scheduled);
  void PublishResults(std::span<const ScheduledSequence> scheduled);
  // The number of requests that ended.
  int FinishRequests();
  // Tells the observer that the sinks have got their results.
  void ReportResults() const;
  // Adds the time since the end of the last stage to `*stage_ns`.
  void EndStage(int64_t* stage_ns);
  // Copies the counters for Stats.
  void PublishStats();

  Checkpoint* const checkpoint_;
  Backend* const backend_;
  const EngineOptions options_;
  const Now now_;
  const std::shared_ptr<RequestQueue> waiting_;  // shared with the handles
  const std::unique_ptr<KvCache> kv_cache_;
  const std::unique_ptr<BlockManager> blocks_;
  const std::unique_ptr<DraftModel> draft_model_;  // null: none
  const std::unique_ptr<Speculator> speculator_;
  const std::unique_ptr<Scheduler> scheduler_;
  const std::unique_ptr<ModelRunner> model_runner_;

  // The engine thread's.
  bool did_work_ = false;     // in this step: computed tokens, or admitted or ended a request
  int num_failed_steps_ = 0;  // in a row
  StageTimes stages_;
  Clock::time_point stage_started_at_;
  Clock::duration draft_time_{};  // of the step
  std::optional<Clock::time_point> step_started_at_;
  std::vector<std::unique_ptr<SequenceGroup>> finished_;

  std::atomic<bool> is_device_lost_ = false;
  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // guarded by stats_mutex_

  bool has_thread_ = false;  // set once, before the engine is in use
  int num_aborted_ = 0;      // written by the thread, read after its end
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ENGINE_H_
