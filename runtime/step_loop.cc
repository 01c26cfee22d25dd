#include "runtime/step_loop.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/batch_builder.h"
#include "runtime/generate_task.h"
#include "runtime/score_task.h"

namespace lssar {
namespace {

int64_t Microseconds(Clock::duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

// Of a request that has just been admitted, or ended before it was.
RequestStats StatsAtAdmission(const Submission& submission, Clock::time_point now) {
  return {.num_prompt_tokens = int(NumPromptTokens(submission.request)),
          .queue_us = Microseconds(now - submission.submitted_at)};
}

void Add(const AttentionCounters& from, AttentionCounters* to) {
  to->num_value_rows += from.num_value_rows;
  to->num_value_rows_read += from.num_value_rows_read;
}

}  // namespace

StepLoop::StepLoop(Checkpoint* checkpoint, std::unique_ptr<KvCache> kv_cache,
                   const EngineOptions& options, RequestQueue* queue, Now now)
    : checkpoint_(checkpoint),
      options_(options),
      queue_(queue),
      now_(std::move(now)),
      kv_cache_(std::move(kv_cache)),
      scheduler_(options.step_tokens),
      logits_reader_(checkpoint->model.get()) {
  RefreshStats();
}

absl::Status StepLoop::Step() {
  did_something_ = false;
  lap_ = now_();
  totals_.step_started_at = lap_;
  StageTimes& stages = totals_.stages;
  EndDue();
  Admit();
  EndStage(&stages.admit_ns);
  PlanStep();
  BuildForwardBatch(plan_, live_, &batch_);
  EndStage(&stages.plan_ns);
  absl::Status status = RunModel();
  if (!status.ok()) std::ranges::fill(failures_, status);
  Publish();
  Retire();
  EndStage(&stages.publish_ns);
  totals_.step_started_at.reset();
  RefreshStats();
  const int num_rows = int(batch_.token_ids.size());
  if (options_.observer != nullptr && num_rows > 0) options_.observer->OnStep(num_rows);
  return status;
}

Clock::time_point StepLoop::NextStepAt() const {
  if (did_something_) return Clock::time_point::min();
  Clock::time_point earliest = queue_->NextDeadline();
  for (const auto& running : running_) {
    const auto& deadline = running->submission.request.deadline;
    if (deadline) earliest = std::min(earliest, *deadline);
  }
  return earliest;
}

void StepLoop::CountIdle(Clock::duration idle) {
  totals_.stages.idle_ns += std::chrono::nanoseconds(idle).count();
}

void StepLoop::EndStage(int64_t* stage_ns) {
  const Clock::time_point now = now_();
  *stage_ns += std::chrono::nanoseconds(now - lap_).count();
  lap_ = now;
}

// Cancelled and late requests go first: what they held is there for those that wait.
void StepLoop::EndDue() {
  const Clock::time_point now = now_();
  for (const auto& running : running_) running->status = DueStatus(running->submission, now);
  Retire();
  queue_->TakeDue(now, &due_);
  for (auto& [submission, status] : due_) {
    submission.sink->OnDone(status, StatsAtAdmission(submission, now));
  }
  queue_->MarkDone(int(due_.size()));
  did_something_ |= !due_.empty();
  due_.clear();
}

// The most senior first: one that has to wait for pages keeps all behind it waiting, so that it is
// not passed by for ever.
void StepLoop::Admit() {
  int num_running = 0;
  for (const auto& running : running_) {
    num_running += int(
        std::ranges::count_if(running->sequences, [](const Sequence& s) { return !s.IsDone(); }));
  }
  const auto fits = [&](const Request& request) {
    const Demand demand = DemandOf(request, kv_cache_->Layout());
    if (num_running + demand.num_sequences > MaxRunning(options_)) return false;
    if (demand.TotalPages() > kv_cache_->Pages().NumFree()) return false;
    num_running += demand.num_sequences;
    return true;
  };
  while (std::optional<Submission> submission = queue_->PopIf(fits)) Start(*std::move(submission));
}

void StepLoop::Start(Submission submission) {
  auto running = std::make_unique<RunningRequest>();
  running->submission = std::move(submission);
  running->admitted_at = now_();
  const Demand demand = DemandOf(running->submission.request, kv_cache_->Layout());
  MakeSequences(running.get(), demand);
  for (Sequence& sequence : running->sequences) {
    LSSAR_CHECK(kv_cache_->Pages().Acquire(demand.num_pages, &sequence.pages));
  }
  const auto seniority = [](const auto& r) { return r->submission.Seniority(); };
  const auto at = std::ranges::upper_bound(running_, seniority(running), {}, seniority);
  const RunningRequest& started = **running_.insert(at, std::move(running));
  did_something_ = true;
  RefreshStats();
  started.submission.sink->OnAdmitted(StatsAtAdmission(started.submission, started.admitted_at));
}

void StepLoop::MakeSequences(RunningRequest* running, const Demand& demand) const {
  const Request& request = running->submission.request;
  running->sequences.resize(size_t(demand.num_sequences));
  std::shared_ptr<const StopStrings> stop_strings;
  if (request.generate && !request.generate->stop_strings.empty()) {
    stop_strings = std::make_shared<StopStrings>(request.generate->stop_strings);
  }
  for (int choice = 0; choice < demand.num_sequences; ++choice) {
    Sequence& sequence = running->sequences[size_t(choice)];
    sequence.rope_base = RopeBase(checkpoint_->config, demand.num_tokens);
    sequence.tokens.reserve(size_t(demand.num_tokens));
    sequence.tokens = request.prompt;
    if (request.generate) {
      sequence.task = std::make_unique<GenerateTask>(
          GenerateTask::Options{.params = &*request.generate,
                                .prompt = request.prompt,
                                .choice = choice,
                                .tokenizer = checkpoint_->tokenizer.get(),
                                .stop_strings = stop_strings,
                                .eos_id = checkpoint_->config.eos_id});
    } else {
      auto task = std::make_unique<ScoreTask>(&*request.score, int(request.prompt.size()));
      task->Start(&sequence);
      sequence.task = std::move(task);
    }
  }
}

void StepLoop::PlanStep() {
  views_.clear();
  live_.clear();
  owners_.clear();
  for (const auto& running : running_) {
    if (!running->submission.sink->HasRoom()) continue;
    for (Sequence& sequence : running->sequences) {
      if (sequence.IsDone()) continue;
      views_.push_back({.num_pending = sequence.NumPending()});
      live_.push_back(&sequence);
      owners_.push_back(running.get());
    }
  }
  scheduler_.Plan(views_, &plan_);
  planned_.clear();
  for (const PlannedRows& rows : plan_) planned_.push_back(live_[size_t(rows.sequence_idx)]);
  failures_.assign(plan_.size(), absl::OkStatus());
  counters_.assign(plan_.size(), AttentionCounters{});
}

absl::Status StepLoop::RunModel() {
  if (plan_.empty()) return absl::OkStatus();
  did_something_ = true;
  ++totals_.num_steps;
  absl::Status status = checkpoint_->model->Forward(batch_, kv_cache_->View(), counters_.data());
  EndStage(&totals_.stages.forward_ns);
  if (status.ok()) {
    CountRows();
    status = logits_reader_.Read(batch_, planned_, failures_);
    EndStage(&totals_.stages.sample_ns);
  }
  num_failed_steps_ = status.ok() ? 0 : num_failed_steps_ + 1;
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("the model step failed: ", status.ToString()));
}

void StepLoop::CountRows() {
  totals_.num_rows += std::ssize(batch_.token_ids);
  for (size_t i = 0; i < plan_.size(); ++i) {
    const Request& request = owners_[size_t(plan_[i].sequence_idx)]->submission.request;
    const int num_rows = plan_[i].num_rows;
    const int num_left =
        request.generate ? int(request.prompt.size()) - planned_[i]->num_computed : num_rows;
    totals_.num_prompt_tokens += std::clamp(num_left, 0, num_rows);
    Add(counters_[i], &planned_[i]->attention);
    Add(counters_[i], &totals_.attention);
  }
}

void StepLoop::Publish() {
  const Clock::time_point now = now_();
  for (size_t i = 0; i < plan_.size(); ++i) {
    RunningRequest& owner = *owners_[size_t(plan_[i].sequence_idx)];
    if (owner.status.ok()) owner.status = failures_[i];
    if (owner.status.ok()) PublishSequence(i, now);
  }
}

void StepLoop::PublishSequence(size_t planned_idx, Clock::time_point now) {
  RunningRequest& owner = *owners_[size_t(plan_[planned_idx].sequence_idx)];
  Sequence& sequence = *planned_[planned_idx];
  const int num_generated = sequence.task->NumGenerated();
  sequence.num_computed += plan_[planned_idx].num_rows;
  if (!owner.prefilled_at && sequence.num_computed >= int(owner.submission.request.prompt.size())) {
    owner.prefilled_at = now;
  }
  sequence.task->Advance(&sequence);
  totals_.num_generated_tokens += sequence.task->NumGenerated() - num_generated;
  sequence.task->Publish(owner.submission.sink.get());
  if (sequence.IsDone()) kv_cache_->Pages().Release(&sequence.pages);
}

// Ends the requests that are over. Pages come back and are counted before anyone hears of the end.
void StepLoop::Retire() {
  for (auto& running : running_) {
    if (!running->IsOver()) continue;
    for (Sequence& sequence : running->sequences) kv_cache_->Pages().Release(&sequence.pages);
    over_.push_back(std::move(running));
  }
  std::erase(running_, nullptr);
  RefreshStats();
  const Clock::time_point now = now_();
  for (const auto& over : over_) over->submission.sink->OnDone(over->status, over->Stats(now));
  queue_->MarkDone(int(over_.size()));
  did_something_ |= !over_.empty();
  over_.clear();
}

int StepLoop::EndAll(const absl::Status& status) {
  const int num_running = int(running_.size());
  for (const auto& running : running_) running->status = status;
  Retire();
  const std::vector<Submission> queued = queue_->TakeAll();
  const Clock::time_point now = now_();
  for (const Submission& submission : queued) {
    submission.sink->OnDone(status, StatsAtAdmission(submission, now));
  }
  queue_->MarkDone(int(queued.size()));
  return num_running + int(queued.size());
}

void StepLoop::RefreshStats() {
  EngineStats stats = totals_;
  stats.num_running = int(running_.size());
  stats.num_pages = kv_cache_->Pages().NumPages();
  stats.num_free_pages = kv_cache_->Pages().NumFree();
  const std::lock_guard lock(stats_mutex_);
  stats_ = stats;
}

EngineStats StepLoop::Stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  const RequestQueue::Load load = queue_->CurrentLoad();
  stats.is_serving = !load.is_closed;
  stats.num_queued = load.num_requests;
  stats.num_queued_tokens = load.num_tokens;
  return stats;
}

bool StepLoop::RunningRequest::IsOver() const {
  return !status.ok() ||
         std::ranges::all_of(sequences, [](const Sequence& s) { return s.IsDone(); });
}

RequestStats StepLoop::RunningRequest::Stats(Clock::time_point now) const {
  RequestStats stats = StatsAtAdmission(submission, admitted_at);
  const Clock::time_point prefill_end = prefilled_at.value_or(now);
  stats.prefill_us = Microseconds(prefill_end - admitted_at);
  stats.decode_us = Microseconds(now - prefill_end);
  for (const Sequence& sequence : sequences) {
    stats.num_generated_tokens += sequence.task->NumGenerated();
    Add(sequence.attention, &stats.attention);
  }
  return stats;
}

}  // namespace lssar
