#include "runtime/engine.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/admission.h"
#include "runtime/kv_cache.h"
#include "runtime/limits.h"
#include "runtime/request_queue.h"
#include "runtime/step_loop.h"

namespace lssar {
namespace {

class EngineThread final : public Engine {
 public:
  EngineThread(Checkpoint* checkpoint, Backend* backend, std::unique_ptr<KvCache> kv_cache,
               const EngineOptions& options)
      : checkpoint_(checkpoint),
        backend_(backend),
        options_(options),
        queue_(
            std::make_shared<RequestQueue>(options.max_queued_requests, MaxQueuedTokens(options))),
        loop_(checkpoint, std::move(kv_cache), options, queue_.get()),
        thread_([this] { Run(); }) {}

  ~EngineThread() override { Drain(absl::ZeroDuration()); }

  absl::StatusOr<Handle> Submit(Request request, std::shared_ptr<TokenSink> sink) override {
    if (absl::Status fits = CheckFits(request, options_, loop_.Layout()); !fits.ok()) return fits;
    if (request.generate && !request.generate->stop_strings.empty() &&
        checkpoint_->tokenizer == nullptr) {
      return absl::FailedPreconditionError(
          "stop_strings: this checkpoint has no tokenizer, so its output has no text to match");
    }
    auto cancelled = std::make_shared<std::atomic<bool>>(false);
    const absl::Status pushed = queue_->Push({.request = std::move(request),
                                              .sink = std::move(sink),
                                              .cancelled = cancelled,
                                              .submitted_at = Clock::now()});
    if (!pushed.ok()) return pushed;
    return Handle(std::move(cancelled), queue_);
  }

  absl::Status CheckRoom() const override { return queue_->CheckRoom(); }

  bool Drain(absl::Duration limit) override {
    queue_->Close(absl::UnavailableError("the engine is draining: it takes no new requests"));
    queue_->WaitUntilNoneOpen(limit);
    queue_->Stop();
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
    return num_cut_ == 0;
  }

  EngineStats Stats() const override {
    EngineStats stats = loop_.Stats();
    stats.is_device_lost = is_device_lost_;
    return stats;
  }
  const EngineOptions& Options() const override { return options_; }
  const Checkpoint& Model() const override { return *checkpoint_; }

 private:
  void Run() {
    absl::Status end = absl::UnavailableError("the engine was stopped");
    while (WaitForWork()) {
      const absl::Status status = loop_.Step();
      if (!status.ok() && backend_->IsLost()) {
        end = absl::InternalError(absl::StrCat("the device is lost: ", status.message()));
        is_device_lost_ = true;
        queue_->Close(absl::UnavailableError(end.message()));
        break;
      }
      if (loop_.NumFailedSteps() == limits::kMaxFailedSteps) {
        end = absl::UnavailableError(
            absl::StrCat("the engine stopped: ", limits::kMaxFailedSteps,
                         " steps in a row failed, the last with: ", status.message()));
        queue_->Close(end);
        break;
      }
    }
    num_cut_ = loop_.EndAll(end);
  }

  // False: stopped.
  bool WaitForWork() {
    const Clock::time_point from = Clock::now();
    const bool goes_on = queue_->WaitForWork(loop_.NextStepAt());
    loop_.CountIdle(Clock::now() - from);
    return goes_on;
  }

  Checkpoint* const checkpoint_;
  Backend* const backend_;
  const EngineOptions options_;
  const std::shared_ptr<RequestQueue> queue_;  // shared with the handles
  StepLoop loop_;
  std::atomic<bool> is_device_lost_ = false;
  int num_cut_ = 0;  // written by the thread, read after its end
  std::mutex join_mutex_;
  std::thread thread_;  // last: it uses all of the others
};

absl::Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " = ", value, " is outside [", low, ", ", high, "]"));
}

// The element types of K and V that are served. bf16 holds unit vectors worst: as int8 does, in
// twice the bytes.
constexpr bool KeepsKv(DType type) { return type != DType::kBF16; }

absl::Status CheckOptions(const EngineOptions& options) {
  for (const absl::Status& status :
       {CheckRange("max_context", options.max_context, 1, limits::kMaxContext),
        CheckRange("max_sequences", options.max_sequences, 1, limits::kMaxSequences),
        CheckRange("max_queued_requests", options.max_queued_requests, 1,
                   limits::kMaxQueuedRequests),
        CheckRange("max_queued_tokens", options.max_queued_tokens, 0, limits::kMaxQueuedTokens),
        CheckRange("step_tokens", options.step_tokens, 1, limits::kMaxStepTokens),
        CheckRange("max_prefill_chunks", options.max_prefill_chunks, 1, limits::kMaxSequences),
        CheckRange("chunk_tokens", options.chunk_tokens, 1, limits::kMaxStepTokens),
        CheckRange("page_tokens", options.page_tokens, kMinPageTokens, kMaxPageTokens),
        CheckRange("kv_bytes", options.kv_bytes, 0, std::numeric_limits<int64_t>::max())}) {
    if (!status.ok()) return status;
  }
  if ((options.page_tokens & (options.page_tokens - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_tokens = ", options.page_tokens, " is not a power of two"));
  }
  if (!KeepsKv(options.kv_type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_type = ", std::string(NameOf(options.kv_type)),
                     ": K and V are kept as fp16, fp32 or int8 only"));
  }
  return absl::OkStatus();
}

}  // namespace

void Engine::Handle::Cancel() const {
  if (cancelled_ == nullptr) return;
  cancelled_->store(true, std::memory_order_relaxed);
  queue_->Wake();
}

void Engine::Handle::Resume() const {
  if (queue_ != nullptr) queue_->Wake();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Checkpoint* checkpoint, Backend* backend,
                                                       const EngineOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  if (options.step_tokens > checkpoint->max_batch_rows) {
    return absl::InvalidArgumentError(absl::StrCat("step_tokens = ", options.step_tokens,
                                                   " is over the ", checkpoint->max_batch_rows,
                                                   " rows that the checkpoint was loaded for"));
  }
  absl::StatusOr<std::unique_ptr<KvCache>> kv_cache =
      KvCache::Create(checkpoint->config, options, backend);
  if (!kv_cache.ok()) return kv_cache.status();
  return std::make_unique<EngineThread>(checkpoint, backend, *std::move(kv_cache), options);
}

}  // namespace lssar
