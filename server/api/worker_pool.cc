#include "server/api/worker_pool.h"

#include <malloc.h>

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/error_details.h"
#include "base/fair_share.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/thread_name.h"

namespace lssar {
namespace {

// After jobs of this many bytes, the memory that they have freed goes back to the system: gRPC's
// receive buffers and protobuf's objects are small, and glibc keeps those. It takes milliseconds.
constexpr int64_t kTrimBytes = int64_t{16} << 20;

}  // namespace

thread_local const WorkerPool::Job* WorkerPool::job_of_thread = nullptr;

WorkerPool::Options WorkerPool::OptionsFor(int max_calls) {
  Options options;
  options.num_threads = std::clamp(int(std::thread::hardware_concurrency() / 2), 2, 8);
  options.max_jobs = std::max(options.max_jobs, max_calls);
  return options;
}

WorkerPool::WorkerPool(const Options& options) : options_(options) {
  LSSAR_CHECK(options.num_threads >= 2);
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < options.num_threads; ++i) AddThread();
  clock_ = std::thread([this] { RunClock(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  clock_changed_.notify_all();
  clock_.join();
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

WorkerPool::Job WorkerPool::Turns::Pop() {
  const auto tenant = jobs_.find(turns_.front());
  Job job = std::move(tenant->second.front());
  tenant->second.pop_front();
  if (tenant->second.empty()) {
    jobs_.erase(tenant);
  } else {
    turns_.push_back(std::move(turns_.front()));
  }
  turns_.pop_front();
  --num_jobs_;
  return job;
}

void WorkerPool::Turns::Push(Job job) {
  std::deque<Job>& jobs = jobs_[job.tenant];
  if (jobs.empty()) turns_.push_back(job.tenant);
  jobs.push_back(std::move(job));
  ++num_jobs_;
}

Clock::time_point WorkerPool::Turns::TakeLate(Clock::time_point now, std::vector<Job>* late) {
  Clock::time_point next = Clock::time_point::max();
  for (auto tenant = jobs_.begin(); tenant != jobs_.end();) {
    std::deque<Job>& jobs = tenant->second;
    const auto first_late = std::stable_partition(jobs.begin(), jobs.end(), [&](const Job& job) {
      const bool is_late = job.limit && job.limit->at <= now;
      if (!is_late && job.limit) next = std::min(next, job.limit->at);
      return !is_late;
    });
    num_jobs_ -= int(jobs.end() - first_late);
    std::move(first_late, jobs.end(), std::back_inserter(*late));
    jobs.erase(first_late, jobs.end());
    if (jobs.empty()) {
      std::erase(turns_, tenant->first);
      tenant = jobs_.erase(tenant);
    } else {
      ++tenant;
    }
  }
  return next;
}

int64_t WorkerPool::Turns::NumJobsOf(const std::string& tenant) const {
  const auto found = jobs_.find(tenant);
  return found == jobs_.end() ? 0 : std::ssize(found->second);
}

absl::Status WorkerPool::CheckCapacity(const std::string& tenant, int64_t num_bytes) const {
  const auto found = shares_.find(tenant);
  const Share own = found == shares_.end() ? Share() : found->second;
  const auto num_tenants = int(shares_.size()) + (found == shares_.end() ? 1 : 0);
  const int num_jobs = small_.NumJobs() + large_.NumJobs();
  const int64_t own_jobs = small_.NumJobsOf(tenant) + large_.NumJobsOf(tenant);
  if (!MayTake(1, own_jobs, num_jobs, options_.max_jobs, num_tenants)) {
    return LimitError(error_reason::kParseQueue,
                      StrCat("the server has ", num_jobs, " requests to parse, ", own_jobs,
                             " of this client; the limit is ", options_.max_jobs, "; retry later"));
  }
  if (num_bytes_ > 0 &&
      !MayTake(num_bytes, own.num_bytes, num_bytes_, options_.max_bytes, num_tenants)) {
    return LimitError(
        error_reason::kParseQueue,
        StrCat("the server has ", num_bytes_, " bytes of requests to parse, ", own.num_bytes,
               " of this client; with this one of ", num_bytes, " bytes they exceed the limit of ",
               options_.max_bytes, "; retry later"));
  }
  return absl::OkStatus();
}

absl::Status WorkerPool::Submit(const std::string& tenant, int64_t num_bytes,
                                std::function<void()> run, std::optional<TimeLimit> limit) {
  bool is_next_late = false;
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(CheckCapacity(tenant, num_bytes));
    Share& share = shares_[tenant];
    ++share.num_open;
    share.num_bytes += num_bytes;
    num_bytes_ += num_bytes;
    is_next_late = limit && limit->at < next_late_;
    if (is_next_late) next_late_ = limit->at;
    Job job{
        .tenant = tenant, .num_bytes = num_bytes, .run = std::move(run), .limit = std::move(limit)};
    Turns& queue = IsLarge(job) ? large_ : small_;
    queue.Push(std::move(job));
  }
  changed_.notify_one();
  if (is_next_late) clock_changed_.notify_one();
  return absl::OkStatus();
}

void WorkerPool::EndLateJobs(Clock::time_point now) {
  std::vector<Job> late;
  {
    const std::lock_guard lock(mutex_);
    next_late_ = std::min(small_.TakeLate(now, &late), large_.TakeLate(now, &late));
    for (const Job& job : late) Forget(job);
  }
  if (!late.empty()) changed_.notify_all();  // a large job behind one of them may run now
  for (const Job& job : late) job.limit->on_late();
}

void WorkerPool::RunClock() {
  NameThisThread("parser-clock");
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    const Clock::time_point now = Clock::now();
    if (now < next_late_) {
      // No time_point::max(): a library may add to it.
      clock_changed_.wait_until(lock, std::min(next_late_, now + std::chrono::hours(1)));
      continue;
    }
    lock.unlock();
    EndLateJobs(now);
    lock.lock();
    clock_changed_.wait_for(lock, kLateInterval, [this] { return is_stopping_; });
  }
}

void WorkerPool::Forget(const Job& job) {
  num_bytes_ -= job.num_bytes;
  const auto share = shares_.find(job.tenant);
  share->second.num_bytes -= job.num_bytes;
  if (--share->second.num_open == 0) shares_.erase(share);
}

void WorkerPool::CountRunning(const Job* job, int change) {
  num_running_ += change;
  if (job == nullptr) return;
  num_large_running_ += IsLarge(*job) ? change : 0;
  num_bytes_running_ += change * job->num_bytes;
}

WorkerPool::Wait::Wait(WorkerPool* pool) : pool_(pool), job_(job_of_thread) {
  if (pool_ == nullptr) return;
  {
    const std::lock_guard lock(pool_->mutex_);
    const auto num_waiting = ++pool_->num_waiting_;
    pool_->CountRunning(job_, -1);
    const bool has_thread =
        std::ssize(pool_->threads_) >= pool_->options_.num_threads + num_waiting;
    if (!has_thread && !pool_->is_stopping_) {
      try {
        pool_->AddThread();
      } catch (const std::system_error&) {  // the other threads do the work, later
      }
    }
  }
  pool_->changed_.notify_all();  // several large jobs may fit into the bytes of this one
}

WorkerPool::Wait::~Wait() {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pool_->mutex_);
  --pool_->num_waiting_;
  pool_->CountRunning(job_, 1);
}

WorkerPool::Turns* WorkerPool::NextQueue() {
  if (num_running_ >= options_.num_threads) return nullptr;
  const bool may_run_large =
      !large_.IsEmpty() && num_large_running_ < options_.num_threads - 1 &&
      (num_large_running_ == 0 ||
       num_bytes_running_ + large_.First().num_bytes <= options_.max_running_bytes);
  if (may_run_large && (small_.IsEmpty() || is_large_next_)) return &large_;
  return small_.IsEmpty() ? nullptr : &small_;
}

void WorkerPool::Run() {
  NameThisThread("parser");
  std::unique_lock lock(mutex_);
  while (true) {
    Turns* queue = nullptr;
    changed_.wait(lock, [&] {
      queue = NextQueue();
      return queue != nullptr || (is_stopping_ && small_.IsEmpty() && large_.IsEmpty());
    });
    if (queue == nullptr) return;
    Job job = queue->Pop();
    const bool is_large = IsLarge(job);
    is_large_next_ = !is_large;
    CountRunning(&job, 1);
    bytes_since_trim_ += job.num_bytes;
    const bool is_trim_due = bytes_since_trim_ >= kTrimBytes;
    if (is_trim_due) bytes_since_trim_ = 0;
    lock.unlock();
    job_of_thread = &job;
    job.run();
    job_of_thread = nullptr;
    job.run = nullptr;  // frees what the job holds, outside the lock
    job.limit = std::nullopt;
    if (is_trim_due) malloc_trim(0);
    lock.lock();
    CountRunning(&job, -1);
    Forget(job);
    // A large job that had to wait may run now; a thread that waits to end looks again.
    if (is_large || is_stopping_) changed_.notify_all();
  }
}

}  // namespace lssar
