#include "runtime/engine.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
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

  absl::StatusOr<Handle> Submit(Request request, std::shared_ptr<OutputSink> sink) override {
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

  absl::Status CheckQueueCapacity() const override { return queue_->CheckQueueCapacity(); }

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
        end = absl::InternalError(StrCat("the device is lost: ", status.message()));
        is_device_lost_ = true;
        queue_->Close(absl::UnavailableError(end.message()));
        break;
      }
      if (loop_.NumFailedSteps() == limits::kMaxFailedSteps) {
        end = absl::UnavailableError(
            StrCat("the engine stopped: ", limits::kMaxFailedSteps,
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

template <typename T>
absl::Status CheckRange(const char* name, T value, limits::Range<T> range) {
  if (value >= range.min && value <= range.max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(name, " = ", value, " is outside [", range.min, ", ", range.max, "]"));
}

// The element types of K and V that are served. bf16 holds unit vectors worst: as int8 does, in
// twice the bytes.
constexpr bool KeepsKv(DType type) { return type != DType::kBF16; }

absl::Status CheckOptions(const EngineOptions& options) {
  RETURN_IF_ERROR(CheckRange("max_model_len", options.max_model_len, limits::kMaxModelLen));
  RETURN_IF_ERROR(CheckRange("max_num_seqs", options.max_num_seqs, limits::kMaxNumSeqs));
  RETURN_IF_ERROR(
      CheckRange("max_queued_requests", options.max_queued_requests, limits::kMaxQueuedRequests));
  RETURN_IF_ERROR(
      CheckRange("max_queued_tokens", options.max_queued_tokens, limits::kMaxQueuedTokens));
  RETURN_IF_ERROR(CheckRange("max_num_batched_tokens", options.max_num_batched_tokens,
                             limits::kMaxNumBatchedTokens));
  RETURN_IF_ERROR(CheckRange("max_num_partial_prefills", options.max_num_partial_prefills,
                             limits::kMaxNumPartialPrefills));
  RETURN_IF_ERROR(CheckRange("chunked_prefill_size", options.chunked_prefill_size,
                             limits::kChunkedPrefillSize));
  RETURN_IF_ERROR(
      CheckRange("page_size", options.page_size, limits::Range<int>{kMinPageSize, kMaxPageSize}));
  RETURN_IF_ERROR(CheckRange("kv_cache_bytes", options.kv_cache_bytes, limits::kKvCacheBytes));
  if ((options.page_size & (options.page_size - 1)) != 0) {
    return absl::InvalidArgumentError(
        StrCat("page_size = ", options.page_size, " is not a power of two"));
  }
  if (!KeepsKv(options.kv_cache_dtype)) {
    return absl::InvalidArgumentError(
        StrCat("kv_cache_dtype = ", std::string(NameOf(options.kv_cache_dtype)),
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
  if (options.max_num_batched_tokens > checkpoint->max_num_batched_tokens) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens = ", options.max_num_batched_tokens, " is over the ",
               checkpoint->max_num_batched_tokens, " rows that the checkpoint was loaded for"));
  }
  absl::StatusOr<std::unique_ptr<KvCache>> kv_cache =
      KvCache::Create(checkpoint->config, options, backend);
  if (!kv_cache.ok()) return kv_cache.status();
  return std::make_unique<EngineThread>(checkpoint, backend, *std::move(kv_cache), options);
}

}  // namespace lssar
