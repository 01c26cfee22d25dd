#include "server/api/worker_pool.h"

#include <malloc.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/error_details.h"
#include "base/str_cat.h"
#include "base/thread_name.h"

namespace lssar {
namespace {

// After jobs of this many bytes, the memory that they have freed goes back to the system: gRPC's
// receive buffers and protobuf's objects are small, and glibc keeps those. It takes milliseconds.
constexpr int64_t kTrimBytes = int64_t{16} << 20;

}  // namespace

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
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status WorkerPool::Submit(int64_t num_bytes, std::function<void()> run) {
  {
    const std::lock_guard lock(mutex_);
    const size_t num_jobs = small_.size() + large_.size();
    if (num_jobs >= size_t(options_.max_jobs)) {
      return LimitError(error_reason::kParseQueue,
                        StrCat("the server has ", num_jobs, " requests to parse; the limit is ",
                               options_.max_jobs, "; retry later"));
    }
    if (num_bytes_ > 0 && num_bytes_ + num_bytes > options_.max_bytes) {
      return LimitError(
          error_reason::kParseQueue,
          StrCat("the server has ", num_bytes_, " bytes of requests to parse; with this one of ",
                 num_bytes, " bytes they exceed the limit of ", options_.max_bytes,
                 "; retry later"));
    }
    Job job{.num_bytes = num_bytes, .run = std::move(run)};
    num_bytes_ += num_bytes;
    std::deque<Job>& queue = IsLarge(job) ? large_ : small_;
    queue.push_back(std::move(job));
  }
  changed_.notify_one();
  return absl::OkStatus();
}

WorkerPool::Wait::Wait(WorkerPool* pool) : pool_(pool) {
  if (pool_ == nullptr) return;
  {
    const std::lock_guard lock(pool_->mutex_);
    const auto num_waiting = ++pool_->num_waiting_;
    --pool_->num_running_;
    const bool has_thread =
        std::ssize(pool_->threads_) >= pool_->options_.num_threads + num_waiting;
    if (!has_thread && !pool_->is_stopping_) {
      try {
        pool_->AddThread();
      } catch (const std::system_error&) {  // the other threads do the work, later
      }
    }
  }
  pool_->changed_.notify_one();
}

WorkerPool::Wait::~Wait() {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pool_->mutex_);
  --pool_->num_waiting_;
  ++pool_->num_running_;
}

std::deque<WorkerPool::Job>* WorkerPool::NextQueue() {
  if (num_running_ >= options_.num_threads) return nullptr;
  const bool may_run_large =
      !large_.empty() && num_large_running_ < options_.num_threads - 1 &&
      (num_large_running_ == 0 ||
       num_bytes_running_ + large_.front().num_bytes <= options_.max_running_bytes);
  if (may_run_large && (small_.empty() || is_large_next_)) return &large_;
  return small_.empty() ? nullptr : &small_;
}

void WorkerPool::Run() {
  NameThisThread("parser");
  std::unique_lock lock(mutex_);
  while (true) {
    std::deque<Job>* queue = nullptr;
    changed_.wait(lock, [&] {
      queue = NextQueue();
      return queue != nullptr || (is_stopping_ && small_.empty() && large_.empty());
    });
    if (queue == nullptr) return;
    Job job = std::move(queue->front());
    queue->pop_front();
    const bool is_large = IsLarge(job);
    is_large_next_ = !is_large;
    ++num_running_;
    num_large_running_ += is_large ? 1 : 0;
    num_bytes_running_ += job.num_bytes;
    bytes_since_trim_ += job.num_bytes;
    const bool is_trim_due = bytes_since_trim_ >= kTrimBytes;
    if (is_trim_due) bytes_since_trim_ = 0;
    lock.unlock();
    job.run();
    job.run = nullptr;  // frees what the job holds, outside the lock
    if (is_trim_due) malloc_trim(0);
    lock.lock();
    --num_running_;
    num_large_running_ -= is_large ? 1 : 0;
    num_bytes_ -= job.num_bytes;
    num_bytes_running_ -= job.num_bytes;
    // A large job that had to wait may run now; a thread that waits to end looks again.
    if (is_large || is_stopping_) changed_.notify_all();
  }
}

}  // namespace lssar
