// One engine step after another: admit -> plan -> forward -> sample -> publish.
#ifndef LSSAR_RUNTIME_STEP_LOOP_H_
#define LSSAR_RUNTIME_STEP_LOOP_H_

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "models/checkpoint.h"
#include "runtime/admission.h"
#include "runtime/engine.h"
#include "runtime/kv_cache.h"
#include "runtime/request_queue.h"
#include "runtime/row_sampler.h"
#include "runtime/running_request.h"
#include "runtime/scheduler.h"
#include "runtime/sequence.h"
#include "runtime/sequence_pages.h"

namespace lssar {

// Owns the pages and everything that runs on them. Has no thread of its own, so that a test can
// take it through its steps one by one.
// Threads   one at a time, but for Stats
class StepLoop {
 public:
  using Now = std::function<Clock::time_point()>;

  // `checkpoint` and `queue` must outlive the loop. `now` gives the time of everything that the
  // loop does and measures.
  StepLoop(Checkpoint* checkpoint, std::unique_ptr<KvCache> kv_cache, const EngineOptions& options,
           RequestQueue* queue, Now now = Clock::now);

  bool IsRunning() const { return !running_.empty(); }

  // When the next step should come: at once while steps get anything done; else by the next
  // deadline, or when the queue wakes the thread.
  Clock::time_point NextStepAt() const;
  void CountIdle(Clock::duration idle);

  // Errors  the backend's, as INTERNAL; the requests whose rows it lost have ended with it by then.
  absl::Status Step();
  // In a row, up to the last one that ran rows.
  int NumFailedSteps() const { return num_failed_steps_; }

  // Ends every open request, queued or running, with `status`; how many there were.
  int EndAll(const absl::Status& status);

  // For those who watch the pages.
  void VisitSequences(absl::FunctionRef<void(const RunningRequest&, const Sequence&)> visit) const;

  // Any thread.
  EngineStats Stats() const;
  const KvLayout& Layout() const { return kv_cache_->Layout(); }

 private:
  void EndDue();
  void Admit();
  bool IsAnyonePreempted() const;
  // Pages that running sequences will not want soon.
  int64_t NumSparePages() const;
  // How many of them the request will want.
  int64_t NumWantedPages(const Request& request) const;
  bool UsesCache(const Request& request) const;
  // Lets preempted sequences run again, the most senior first, as far as there are pages. The
  // seniority of the first that has to wait.
  Clock::time_point Readmit(int64_t* num_spare_pages);
  void Start(Submission submission, int num_sequences);
  void TakeCached(RunningRequest* running, Sequence* sequence);
  void Rewind(RunningRequest* running, Sequence* sequence);
  // Once the prompt is computed: the further sequences begin with its pages.
  void Fork(RunningRequest* running);
  void PlanStep();
  // Takes the pages that the plan's rows need, from junior sequences if need be; a sequence that
  // cannot have them gets fewer rows.
  void SecurePages();
  // False: no sequence that is paused, or junior to `sequence`, holds pages.
  bool PreemptFor(const Sequence& sequence);
  void Preempt(RunningRequest* running, Sequence* sequence);
  absl::Status RunModel();
  void CountRows();
  void Publish();
  void PublishSequence(size_t planned_idx, Clock::time_point now);
  void Retire();
  void RefreshStats();
  // Adds the time since the step's last lap to the stage that ends now.
  void EndStage(int64_t* stage_ns);

  Checkpoint* const checkpoint_;
  const EngineOptions options_;
  RequestQueue* const queue_;
  const Now now_;
  const std::unique_ptr<KvCache> kv_cache_;
  SequencePages sequence_pages_;
  const Scheduler scheduler_;
  RowSampler row_sampler_;
  std::vector<std::unique_ptr<RunningRequest>> running_;  // most senior first

  // Of the step; members to keep their memory.
  bool did_something_ = false;  // ran rows, or began or ended a request
  Clock::time_point lap_;
  std::vector<std::pair<Submission, absl::Status>> due_;
  std::vector<SequenceView> views_;
  std::vector<Sequence*> live_;          // element i belongs to views_[i]
  std::vector<RunningRequest*> owners_;  // of live_
  StepPlan plan_;
  ForwardBatch batch_;
  std::vector<Sequence*> planned_;        // element i belongs to plan_[i]
  std::vector<absl::Status> failures_;    // of planned_
  std::vector<AttentionStats> counters_;  // of planned_
  std::vector<std::unique_ptr<RunningRequest>> over_;

  int num_failed_steps_ = 0;
  EngineStats totals_;  // its counters, not its gauges
  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // guarded by stats_mutex_
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_STEP_LOOP_H_
