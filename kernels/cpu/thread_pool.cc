#include "kernels/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "kernels/check.h"

namespace lssar {
namespace {

constexpr uint64_t kLowerHalf = 0xFFFFFFFF;

constexpr auto kSpinTime = std::chrono::microseconds(40);

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `ready()` or for kSpinTime. Returns ready().
template <typename Ready>
bool SpinUntil(const Ready& ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

}  // namespace

int ThreadPool::NumUsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, int(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads) : shares_(std::make_unique<Share[]>(size_t(num_threads))) {
  LSSAR_CHECK(num_threads >= 1);
  workers_.reserve(size_t(num_threads - 1));
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t num_tasks, Task task) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || workers_.empty()) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  LSSAR_CHECK(num_tasks <= std::numeric_limits<uint32_t>::max());
  task_ = &task;
  num_finished_.store(0, std::memory_order_relaxed);
  uint64_t first = 0;
  for (uint64_t t = 0; t < uint64_t(NumThreads()); ++t) {
    const uint64_t end = (t + 1) * uint64_t(num_tasks) / uint64_t(NumThreads());
    shares_[t].unclaimed.store(first << 32 | end, std::memory_order_release);
    first = end;
  }
  // Sequentially consistent with num_sleeping_: either a worker that is about to sleep sees the
  // job, or this thread sees that it sleeps.
  job_number_.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  RunTasks(0);
  const auto finished = [&] { return num_finished_.load(std::memory_order_acquire) == num_tasks; };
  // A worker still runs a task. The scheduler may have taken its core, so yield this one.
  while (!SpinUntil(finished)) std::this_thread::yield();
}

std::optional<int64_t> ThreadPool::Claim(Share& share, ShareEnd end) {
  const bool is_first = end == ShareEnd::kFirst;
  uint64_t unclaimed = share.unclaimed.load(std::memory_order_acquire);
  while (unclaimed >> 32 < (unclaimed & kLowerHalf)) {
    const uint64_t left = is_first ? unclaimed + (uint64_t{1} << 32) : unclaimed - 1;
    if (share.unclaimed.compare_exchange_weak(unclaimed, left, std::memory_order_acq_rel,
                                              std::memory_order_acquire)) {
      return int64_t(is_first ? unclaimed >> 32 : left & kLowerHalf);
    }
  }
  return std::nullopt;
}

// A job cannot end while one of its tasks is claimed and not yet counted as finished. So a claimed
// task always belongs to the job whose task_ is set, even if this thread started late.
void ThreadPool::RunTasks(int thread_idx) {
  int64_t num_done = 0;
  const auto run = [&](int64_t task_idx) {
    (*task_)(task_idx, thread_idx);
    ++num_done;
  };
  Share& own = shares_[size_t(thread_idx)];
  while (const std::optional<int64_t> task_idx = Claim(own, ShareEnd::kFirst)) run(*task_idx);
  for (int i = 1; i < NumThreads(); ++i) {
    Share& other = shares_[size_t((thread_idx + i) % NumThreads())];
    while (const std::optional<int64_t> task_idx = Claim(other, ShareEnd::kLast)) run(*task_idx);
  }
  if (num_done > 0) num_finished_.fetch_add(num_done, std::memory_order_acq_rel);
}

void ThreadPool::WorkerLoop(int thread_idx) {
  uint64_t seen_job = 0;
  while (WaitForJob(&seen_job)) RunTasks(thread_idx);
}

bool ThreadPool::WaitForJob(uint64_t* seen_job) {
  const auto ready = [&] {
    return job_number_.load(std::memory_order_seq_cst) != *seen_job ||
           stopping_.load(std::memory_order_relaxed);
  };
  if (!SpinUntil(ready)) {
    std::unique_lock<std::mutex> lock(mutex_);
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, ready);
    num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
  }
  *seen_job = job_number_.load(std::memory_order_relaxed);
  return !stopping_.load(std::memory_order_relaxed);
}

}  // namespace lssar
