#include "runtime/engine.h"

#include <chrono>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/thread_name.h"
#include "models/page_pool.h"
#include "runtime/block_manager.h"
#include "runtime/draft_model.h"
#include "runtime/kv_cache.h"
#include "runtime/limits.h"
#include "runtime/model_runner.h"
#include "runtime/request_queue.h"
#include "runtime/scheduler.h"
#include "runtime/speculator.h"

namespace lssar {
namespace {

template <typename T>
absl::Status CheckRange(const char* name, T value, limits::Range<T> range) {
  if (value >= range.min && value <= range.max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(name, " = ", value, " is outside [", range.min, ", ", range.max, "]"));
}

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
  RETURN_IF_ERROR(CheckRange("attention_sample_interval", options.attention_sample_interval,
                             limits::kAttentionSampleInterval));
  RETURN_IF_ERROR(CheckRange("num_speculative_tokens", options.num_speculative_tokens,
                             limits::kNumSpeculativeTokens));
  RETURN_IF_ERROR(
      CheckRange("prompt_lookup_max", options.prompt_lookup_max, limits::kPromptLookupLength));
  RETURN_IF_ERROR(CheckRange("prompt_lookup_min", options.prompt_lookup_min,
                             {limits::kPromptLookupLength.min, options.prompt_lookup_max}));
  RETURN_IF_ERROR(CheckRange("page_size", options.page_size, {kMinPageSize, kMaxPageSize}));
  RETURN_IF_ERROR(CheckRange("kv_cache_bytes", options.kv_cache_bytes, limits::kKvCacheBytes));
  if ((options.page_size & (options.page_size - 1)) != 0) {
    return absl::InvalidArgumentError(
        StrCat("page_size = ", options.page_size, " is not a power of two"));
  }
  if (!HoldsKv(options.kv_cache_dtype)) {
    return absl::InvalidArgumentError(
        StrCat("kv_cache_dtype = ", NameOf(options.kv_cache_dtype), ": K and V are stored as ",
               StrJoin(KvTypes(), [](DType type) { return NameOf(type); }), " only"));
  }
  const bool has_draft_model = options.speculative_method == SpeculativeMethod::kDraftModel;
  if (has_draft_model != (options.draft_checkpoint != nullptr)) {
    return absl::InvalidArgumentError(
        has_draft_model ? "the speculative method draft-model needs a draft_checkpoint"
                        : "a draft_checkpoint needs the speculative method draft-model");
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
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, CreateStepped(checkpoint, backend, options));
  engine->has_thread_ = true;
  engine->thread_ = std::thread([engine = engine.get()] { engine->Run(); });
  return engine;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::CreateStepped(Checkpoint* checkpoint,
                                                              Backend* backend,
                                                              const EngineOptions& options,
                                                              Now now) {
  RETURN_IF_ERROR(CheckOptions(options));
  if (options.max_num_batched_tokens > checkpoint->max_num_batched_tokens) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens = ", options.max_num_batched_tokens, " is over the ",
               checkpoint->max_num_batched_tokens, " tokens that the checkpoint was loaded for"));
  }
  RETURN_IF_ERROR(CheckMaxLength(checkpoint->config, options.max_model_len));
  if (options.draft_checkpoint != nullptr) {
    RETURN_IF_ERROR(CheckMaxLength(options.draft_checkpoint->config, options.max_model_len));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<KvCache> kv_cache,
                   KvCache::Create(checkpoint->config, options, backend));
  RETURN_IF_ERROR(checkpoint->model->PrepareSteps(kv_cache->View(), options.max_num_seqs,
                                                  options.max_model_len));
  std::unique_ptr<DraftModel> draft_model;
  if (options.draft_checkpoint != nullptr) {
    ASSIGN_OR_RETURN(draft_model,
                     DraftModel::Create(options.draft_checkpoint, *checkpoint,
                                        kv_cache->Layout().num_pages, options, backend));
  }
  return std::unique_ptr<Engine>(new Engine(checkpoint, backend, std::move(kv_cache),
                                            std::move(draft_model), options, std::move(now)));
}

Engine::Engine(Checkpoint* checkpoint, Backend* backend, std::unique_ptr<KvCache> kv_cache,
               std::unique_ptr<DraftModel> draft_model, const EngineOptions& options, Now now)
    : checkpoint_(checkpoint),
      backend_(backend),
      options_(options),
      now_(std::move(now)),
      waiting_(
          std::make_shared<RequestQueue>(options.max_queued_requests, MaxQueuedTokens(options))),
      kv_cache_(std::move(kv_cache)),
      blocks_(std::make_unique<BlockManager>(kv_cache_.get())),
      draft_model_(std::move(draft_model)),
      speculator_(std::make_unique<Speculator>(
          options, options.proposer != nullptr ? options.proposer : draft_model_.get())),
      scheduler_(std::make_unique<Scheduler>(checkpoint, options, blocks_.get(), waiting_.get(),
                                             speculator_.get())),
      model_runner_(std::make_unique<ModelRunner>(checkpoint->model.get(), kv_cache_->View(),
                                                  options.attention_sample_interval)) {
  PublishStats();
}

Engine::~Engine() { Drain(absl::ZeroDuration()); }

absl::StatusOr<Engine::Handle> Engine::Submit(Request request, std::shared_ptr<OutputSink> sink,
                                              std::string tenant) {
  RETURN_IF_ERROR(CheckFits(request, options_, kv_cache_->Layout()));
  const GenerateParams* const generate = request.Generate();
  if (generate != nullptr && !generate->stop_strings.empty() && checkpoint_->tokenizer == nullptr) {
    return UnmetField("stop_strings",
                      "is set, and this checkpoint has no tokenizer, so its output has no text");
  }
  auto group = std::make_unique<SequenceGroup>();
  group->required = RequiredResourcesOf(request, kv_cache_->Layout());
  group->request = std::move(request);
  group->sink = std::move(sink);
  group->tenant = std::move(tenant);
  group->cancelled = std::make_shared<std::atomic<bool>>(false);
  group->arrival_time = now_();
  Handle handle(group->cancelled, waiting_);
  RETURN_IF_ERROR(waiting_->Push(std::move(group)));
  return handle;
}

absl::Status Engine::CheckQueueCapacity(std::string_view tenant, const Request& request) const {
  return waiting_->CheckCapacity(tenant, request);
}

bool Engine::Drain(absl::Duration limit) {
  waiting_->Close(
      absl::UnavailableError("the engine is draining and does not accept new requests"));
  if (has_thread_) waiting_->WaitUntilNoneOpen(limit);
  waiting_->Stop();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
  if (!has_thread_) num_aborted_ += AbortAll(absl::UnavailableError("the engine was stopped"));
  return num_aborted_ == 0;
}

void Engine::Run() {
  NameThisThread("engine");
  absl::Status end = absl::UnavailableError("the engine was stopped");
  while (WaitForWork()) {
    const absl::Status status = Step();
    if (!status.ok() && backend_->IsLost()) {
      end = absl::InternalError(StrCat("the device is lost: ", status.message()));
      is_device_lost_ = true;
      waiting_->Close(absl::UnavailableError(end.message()));
      break;
    }
    if (num_failed_steps_ == limits::kMaxFailedSteps) {
      end = absl::UnavailableError(
          StrCat("the engine stopped: ", limits::kMaxFailedSteps,
                 " steps in a row failed, the last with: ", status.message()));
      waiting_->Close(end);
      break;
    }
  }
  num_aborted_ = AbortAll(end);
}

// After a step that did work the next one follows at once. Otherwise there is nothing to do until a
// request comes, a handle wakes the engine, or a deadline passes.
bool Engine::WaitForWork() {
  const Clock::time_point from = now_();
  const bool goes_on =
      waiting_->WaitForWork(did_work_ ? Clock::time_point::min() : scheduler_->NextDeadline());
  stages_.idle_ns += std::chrono::nanoseconds(now_() - from).count();
  return goes_on;
}

absl::Status Engine::Step() {
  did_work_ = false;
  step_started_at_ = stage_started_at_ = now_();
  scheduler_->AbortDue(stage_started_at_);
  FinishRequests();
  AdmitRequests();
  EndStage(&stages_.admit_ns);

  const std::span<ScheduledSequence> scheduled = Schedule();
  const absl::Status status = scheduled.empty() ? absl::OkStatus() : RunModel(scheduled);

  FinishRequests();
  EndStage(&stages_.output_ns);
  step_started_at_.reset();
  PublishStats();
  ReportResults();
  return status;
}

void Engine::ReportResults() const {
  if (options_.observer != nullptr) options_.observer->OnResults();
}

void Engine::AdmitRequests() {
  const std::span<SequenceGroup* const> admitted = scheduler_->Admit();
  if (admitted.empty()) return;
  did_work_ = true;
  PublishStats();
  for (SequenceGroup* const group : admitted) {
    const Clock::time_point now = now_();
    group->admitted_at = now;
    group->sink->OnAdmitted(group->Stats(now));
    group->sequences[0].task->Publish(group->sink.get());  // scores from the prefix cache
  }
  ReportResults();  // the model runs before the end of the step
}

// The stats are published before a model runs: the watchdog sees that the step has begun.
std::span<ScheduledSequence> Engine::Schedule() {
  scheduler_->Schedule();
  EndStage(&stages_.schedule_ns);
  PublishStats();
  const Clock::time_point from = stage_started_at_;
  const std::span<ScheduledSequence> scheduled = scheduler_->AddDrafts();
  EndStage(draft_model_ != nullptr ? &stages_.forward_ns : &stages_.schedule_ns);
  draft_time_ = stage_started_at_ - from;
  model_runner_->PrepareBatch(scheduled);
  EndStage(&stages_.schedule_ns);
  return scheduled;
}

absl::Status Engine::RunModel(std::span<ScheduledSequence> scheduled) {
  did_work_ = true;
  const Clock::time_point from = stage_started_at_;
  absl::Status forward = model_runner_->Forward(scheduler_->WatchForOthers());
  EndStage(&stages_.forward_ns);
  if (absl::IsCancelled(forward)) {
    scheduler_->OnInterrupted();
    forward = model_runner_->Discard();
    if (forward.ok()) return forward;
  }
  const absl::Status status = model_runner_->Sample(forward, scheduled);
  EndStage(&stages_.sample_ns);
  if (status.ok()) speculator_->EndStep(scheduled, draft_time_ + (stage_started_at_ - from));
  num_failed_steps_ = status.ok() ? 0 : num_failed_steps_ + 1;
  if (options_.observer != nullptr) options_.observer->OnStep(model_runner_->NumTokens());
  PublishResults(scheduled);
  return status;
}

void Engine::PublishResults(std::span<const ScheduledSequence> scheduled) {
  const Clock::time_point now = now_();
  for (const ScheduledSequence& sequence : scheduled) {
    SequenceGroup& group = *sequence.group;
    if (group.status.ok()) group.status = sequence.status;
    if (!group.status.ok()) continue;
    scheduler_->Complete(sequence, now);
    sequence.sequence->task->Publish(group.sink.get());
  }
}

// Pages are freed, and counted as free, before a sink learns that its request ended.
int Engine::FinishRequests() {
  scheduler_->TakeFinished(&finished_);
  if (finished_.empty()) return 0;
  did_work_ = true;
  PublishStats();
  const Clock::time_point now = now_();
  for (const auto& group : finished_) group->sink->OnDone(group->status, group->Stats(now));
  const int num_finished = int(finished_.size());
  finished_.clear();
  waiting_->MarkDone(num_finished);
  return num_finished;
}

int Engine::AbortAll(const absl::Status& status) {
  scheduler_->AbortAll(status);
  const int num_aborted = FinishRequests();
  ReportResults();
  return num_aborted;
}

void Engine::EndStage(int64_t* stage_ns) {
  const Clock::time_point now = now_();
  *stage_ns += std::chrono::nanoseconds(now - stage_started_at_).count();
  stage_started_at_ = now;
}

void Engine::PublishStats() {
  const PageAllocator& pages = blocks_->Pages();
  const std::lock_guard lock(stats_mutex_);
  static_cast<SchedulerCounters&>(stats_) = scheduler_->Totals();
  static_cast<ModelCounters&>(stats_) = model_runner_->Totals();
  stats_.num_running = int(scheduler_->Running().size());
  stats_.num_pages = pages.NumPages();
  stats_.num_free_pages = pages.NumFree();
  stats_.num_cached_pages = pages.NumEvictable();
  if (draft_model_ != nullptr) {
    stats_.num_draft_model_pages = draft_model_->NumPages();
    stats_.num_free_draft_model_pages = draft_model_->NumAvailablePages();
    stats_.num_draft_model_failures = draft_model_->NumFailures();
  }
  stats_.stages = stages_;
  stats_.step_started_at = step_started_at_;
}

EngineStats Engine::Stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  const RequestQueue::Load load = waiting_->CurrentLoad();
  stats.is_serving = !load.is_closed;
  stats.is_device_lost = is_device_lost_;
  stats.num_layers_begun = model_runner_->NumLayersBegun();
  if (draft_model_ != nullptr) stats.num_layers_begun += draft_model_->NumLayersBegun();
  stats.num_waiting = load.num_requests;
  stats.num_waiting_tokens = load.num_tokens;
  return stats;
}

std::vector<HeadStatistics> Engine::SampledAttention() const {
  return model_runner_->SampledAttention();
}

const KvView& Engine::GetKvView() const { return kv_cache_->View(); }

}  // namespace lssar
