#include "runtime/step_loop.h"

#include <algorithm>
#include <chrono>

#include "kernels/check.h"
#include "kernels/str_cat.h"
#include "runtime/batch_builder.h"

namespace lssar {
StepLoop::StepLoop(Checkpoint* checkpoint, std::unique_ptr<KvCache> kv_cache,
                   const EngineOptions& options, RequestQueue* queue, Now now)
    : checkpoint_(checkpoint),
      options_(options),
      queue_(queue),
      now_(std::move(now)),
      kv_cache_(std::move(kv_cache)),
      sequence_pages_(kv_cache_.get()),
      scheduler_({.max_num_batched_tokens = options.max_num_batched_tokens,
                  .max_num_partial_prefills = options.max_num_partial_prefills,
                  .chunked_prefill_size = options.chunked_prefill_size}) {
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
  EndStage(&stages.schedule_ns);
  RefreshStats();
  absl::Status status = RunModel();
  if (!status.ok()) std::ranges::fill(failures_, status);
  Publish();
  Retire();
  EndStage(&stages.output_ns);
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
  for (const auto& running : running_) {
    running->status = DueStatus(running->submission, now);
    running->is_paused = !running->submission.sink->IsWritable();
  }
  Retire();
  queue_->TakeDue(now, &due_);
  for (auto& [submission, status] : due_) {
    submission.sink->OnDone(status, StatsAtAdmission(submission, now));
  }
  queue_->MarkDone(int(due_.size()));
  did_something_ |= !due_.empty();
  due_.clear();
}

// The most senior first: one that has to wait keeps all behind it waiting, so that it is not passed
// by for ever. With nobody else there all pages can be had, and nobody needs to be asked.
void StepLoop::Admit() {
  if (queue_->NumQueued() == 0 && !IsAnyonePreempted()) return;
  int64_t num_spare_pages = NumSparePages();
  const Clock::time_point first_waiting = Readmit(&num_spare_pages);
  int num_sequences = 0;
  bool is_alone = true;
  for (const auto& running : running_) {
    is_alone &= running->is_paused;
    num_sequences += int(
        std::ranges::count_if(running->sequences, [](const Sequence& s) { return !s.IsDone(); }));
  }
  int num_more = 0;
  const auto fits = [&](const Submission& submission) {
    const Demand demand = DemandOf(submission.request, kv_cache_->Layout());
    num_more = demand.num_sequences;
    if (submission.EffectiveArrivalTime() >= first_waiting) return false;
    if (num_sequences + num_more > MaxRunning(options_)) return false;
    int64_t num_wanted = NumWantedPages(submission.request);
    if (!is_alone && num_wanted > num_spare_pages) return false;
    // Nobody waits for those that it could do without, and half of the places stay for others.
    const int num_most = std::min(demand.max_num_seqs, MaxRunning(options_) / 2 - num_sequences);
    for (; num_more < num_most && num_wanted + demand.NumOwnPages() <= num_spare_pages;
         ++num_more) {
      num_wanted += demand.NumOwnPages();
    }
    num_sequences += num_more;
    num_spare_pages -= num_wanted;
    is_alone = false;
    return true;
  };
  while (std::optional<Submission> submission = queue_->PopIf(fits)) {
    Start(*std::move(submission), num_more);
  }
}

bool StepLoop::IsAnyonePreempted() const {
  return std::ranges::any_of(running_, [](const auto& running) {
    return std::ranges::count(running->sequences, SequenceState::kPreempted, &Sequence::state) > 0;
  });
}

// Paused sequences lend theirs: famine takes those first.
int64_t StepLoop::NumSparePages() const {
  const KvLayout& layout = kv_cache_->Layout();
  int64_t num_spare = kv_cache_->NumAvailable();
  for (const auto& running : running_) {
    const Demand demand = DemandOf(running->GetRequest(), layout);
    for (const Sequence& sequence : running->sequences) {
      if (sequence.IsDone() || sequence.state == SequenceState::kPreempted) continue;
      const auto num_held = int64_t(sequence.pages.size());
      if (running->is_paused) {
        num_spare += num_held;
        continue;
      }
      // A page more than its next token needs, or the next to come would be preempted at once.
      int64_t num_wanted = layout.PagesFor(int(sequence.tokens.size()) + 1) + 1;
      if (sequence.state == SequenceState::kAwaitsPrompt) num_wanted -= demand.num_shared_pages;
      num_spare -= std::max(int64_t{0}, num_wanted - num_held);
    }
  }
  return num_spare;
}

int64_t StepLoop::NumWantedPages(const Request& request) const {
  const KvLayout& layout = kv_cache_->Layout();
  const Demand demand = DemandOf(request, layout);
  const int64_t num_first =
      request.generate ? layout.PagesFor(int(request.prompt.size()) + 1) + 1 : demand.num_pages;
  int64_t num_wanted =
      num_first + (demand.num_sequences - 1) * (num_first - demand.num_shared_pages);
  if (UsesCache(request)) {
    const double rope_base = RopeBase(checkpoint_->config, demand.num_tokens);
    num_wanted -= sequence_pages_.NumHeld({.rope_base = rope_base, .salt = request.cache_salt},
                                          request.prompt);
  }
  return num_wanted;
}

bool StepLoop::UsesCache(const Request& request) const {
  return options_.enable_prefix_caching && request.use_prefix_cache;
}

// The first that is not paused runs whatever there is: it takes what it needs from its juniors.
Clock::time_point StepLoop::Readmit(int64_t* num_spare_pages) {
  bool is_first = true;
  for (const auto& running : running_) {
    if (running->is_paused) continue;
    for (Sequence& sequence : running->sequences) {
      if (sequence.IsDone()) continue;
      if (sequence.state == SequenceState::kPreempted) {
        const int num_wanted = kv_cache_->Layout().PagesFor(int(sequence.tokens.size()) + 1) + 1;
        if (!is_first && num_wanted > *num_spare_pages)
          return running->submission.EffectiveArrivalTime();
        *num_spare_pages -= num_wanted;
        sequence.state = SequenceState::kRuns;
      }
      is_first = false;
    }
  }
  return Clock::time_point::max();
}

void StepLoop::Start(Submission submission, int num_sequences) {
  const Demand demand = DemandOf(submission.request, kv_cache_->Layout());
  const bool uses_cache = UsesCache(submission.request);
  auto made = MakeRunning(std::move(submission), num_sequences, demand, *checkpoint_, uses_cache);
  const auto seniority = [](const auto& r) { return r->submission.EffectiveArrivalTime(); };
  const auto at = std::ranges::upper_bound(running_, seniority(made), {}, seniority);
  RunningRequest& running = **running_.insert(at, std::move(made));
  running.admitted_at = now_();
  running.is_paused = !running.submission.sink->IsWritable();
  if (uses_cache) {
    totals_.num_prefix_cache_queries += std::ssize(running.sequences[0].tokens);
    TakeCached(&running, &running.sequences[0]);
  }
  Fork(&running);
  did_something_ = true;
  RefreshStats();
  RequestStats stats = StatsAtAdmission(running.submission, running.admitted_at);
  stats.num_cached_tokens = running.num_cached_tokens;
  running.submission.sink->OnAdmitted(stats);
  running.sequences[0].task->Publish(running.submission.sink.get());  // what the cache knew
}

// Tokens that a preempted sequence finds again were no one's saving.
void StepLoop::TakeCached(RunningRequest* running, Sequence* sequence) {
  const int num_computed = sequence->num_computed;
  if (!sequence_pages_.TakeCached(sequence) || running->num_preemptions > 0) return;
  const int num_taken = std::max(0, sequence->num_computed - num_computed);
  running->num_cached_tokens += num_taken;
  totals_.num_prefix_cache_hits += num_taken;
}

void StepLoop::Rewind(RunningRequest* running, Sequence* sequence) {
  const int num_computed = sequence->num_computed;
  sequence_pages_.Rewind(sequence);
  if (!sequence->root || running->num_preemptions > 0) return;
  const int num_taken = std::max(0, sequence->num_computed - num_computed);
  running->num_cached_tokens += num_taken;
  totals_.num_prefix_cache_queries += std::ssize(sequence->tokens) - num_computed;
  totals_.num_prefix_cache_hits += num_taken;
}

// The prompt's last row is each sequence's own: it gives the logits of its first token.
void StepLoop::Fork(RunningRequest* running) {
  std::vector<Sequence>& sequences = running->sequences;
  const int num_shared_tokens = int(running->GetRequest().prompt.size()) - 1;
  if (sequences.size() == 1 || sequences[1].state != SequenceState::kAwaitsPrompt) return;
  if (sequences[0].num_computed < num_shared_tokens) return;
  for (size_t choice = 1; choice < sequences.size(); ++choice) {
    sequence_pages_.Fork(sequences[0], &sequences[choice], num_shared_tokens);
    sequences[choice].state = SequenceState::kRuns;
    // The cache may know what follows the context.
    if (running->GetRequest().score) Rewind(running, &sequences[choice]);
  }
}

// Of those that capture attention, the most senior one alone runs: a row may cost it a second.
void StepLoop::PlanStep() {
  bool has_capture = false;
  views_.clear();
  live_.clear();
  owners_.clear();
  for (const auto& running : running_) {
    if (running->is_paused) continue;
    for (Sequence& sequence : running->sequences) {
      if (sequence.IsDone() || sequence.state != SequenceState::kRuns) continue;
      if (sequence.task->Capture() != nullptr && std::exchange(has_capture, true)) continue;
      // Others may have computed what comes next since the last step.
      if (sequence.NumPending() > 1 && sequence.num_computed % options_.page_size == 0) {
        TakeCached(running.get(), &sequence);
        sequence.task->Publish(running->submission.sink.get());
        Fork(running.get());
      }
      views_.push_back({.num_pending = sequence.task->MaxRows(sequence),
                        .first_row = sequence.num_computed,
                        .streams = sequence.task->Streams()});
      live_.push_back(&sequence);
      owners_.push_back(running.get());
    }
  }
  scheduler_.Plan(views_, &plan_);
  SecurePages();
  planned_.clear();
  for (const PlannedRows& rows : plan_) planned_.push_back(live_[size_t(rows.sequence_idx)]);
  failures_.assign(plan_.size(), absl::OkStatus());
  counters_.assign(plan_.size(), AttentionStats{});
}

void StepLoop::SecurePages() {
  for (PlannedRows& rows : plan_) {
    Sequence& sequence = *live_[size_t(rows.sequence_idx)];
    if (sequence.state == SequenceState::kPreempted) {  // for a senior one, in this loop
      rows.num_rows = 0;
      continue;
    }
    while (!sequence_pages_.Grow(&sequence, sequence.num_computed + rows.num_rows)) {
      if (PreemptFor(sequence)) continue;
      rows.num_rows = sequence_pages_.MaxTokens(sequence) - sequence.num_computed;
    }
  }
  std::erase_if(plan_, [](const PlannedRows& rows) { return rows.num_rows == 0; });
}

bool StepLoop::PreemptFor(const Sequence& sequence) {
  for (const bool is_paused : {true, false}) {
    for (size_t i = running_.size(); i-- > 0;) {
      RunningRequest& running = *running_[i];
      if (running.is_paused != is_paused) continue;
      for (size_t choice = running.sequences.size(); choice-- > 0;) {
        Sequence& victim = running.sequences[choice];
        if (&victim == &sequence) return false;
        if (victim.pages.empty()) continue;
        Preempt(&running, &victim);
        return true;
      }
    }
  }
  return false;
}

void StepLoop::Preempt(RunningRequest* running, Sequence* sequence) {
  sequence_pages_.Release(sequence);
  sequence->state = SequenceState::kPreempted;
  ++running->num_preemptions;
  ++totals_.num_preemptions;
}

absl::Status StepLoop::RunModel() {
  if (plan_.empty()) return absl::OkStatus();
  did_something_ = true;
  ++totals_.num_steps;
  LanguageModel* const model = checkpoint_->model.get();
  absl::Status status = model->Forward(batch_, kv_cache_->View(), counters_.data());
  EndStage(&totals_.stages.forward_ns);
  if (status.ok()) row_sampler_.Ask(batch_, planned_, model);
  // Even a step that failed: nothing of it may come after what is freed now.
  status.Update(model->Synchronize());
  if (status.ok()) {
    CountRows();
    row_sampler_.HandOut(batch_, planned_, failures_);
  }
  EndStage(&totals_.stages.sample_ns);
  num_failed_steps_ = status.ok() ? 0 : num_failed_steps_ + 1;
  if (status.ok()) return status;
  return absl::InternalError(StrCat("the model step failed: ", status.ToString()));
}

void StepLoop::CountRows() {
  totals_.num_batched_tokens += std::ssize(batch_.token_ids);
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
  sequence_pages_.Seal(&sequence);
  Fork(&owner);
  const int num_computed = sequence.num_computed;
  sequence.task->Advance(&sequence);
  if (sequence.num_computed < num_computed) Rewind(&owner, &sequence);
  totals_.num_generated_tokens += sequence.task->NumGenerated() - num_generated;
  sequence.task->Publish(owner.submission.sink.get());
  if (sequence.IsDone()) sequence_pages_.Release(&sequence);
}

// Ends the requests that are over. Pages come back and are counted before anyone hears of the end.
void StepLoop::Retire() {
  for (auto& running : running_) {
    if (!running->IsOver()) continue;
    for (Sequence& sequence : running->sequences) sequence_pages_.Release(&sequence);
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
  stats.num_cached_pages = kv_cache_->Pages().NumIdle();
  const std::lock_guard lock(stats_mutex_);
  stats_ = stats;
}

void StepLoop::VisitSequences(
    absl::FunctionRef<void(const RunningRequest&, const Sequence&)> visit) const {
  for (const auto& running : running_) {
    for (const Sequence& sequence : running->sequences) visit(*running, sequence);
  }
}

EngineStats StepLoop::Stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  const RequestQueue::Load load = queue_->CurrentLoad();
  stats.is_serving = !load.is_closed;
  stats.num_waiting = load.num_requests;
  stats.num_waiting_tokens = load.num_tokens;
  return stats;
}

}  // namespace lssar
