#include "kernels/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "kernels/check.h"

namespace lssar {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(40);

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `ready()` or until kSpinTime is over; says whether it is ready.
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
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads) {
  LSSAR_CHECK(num_threads >= 1);
  workers_.reserve(static_cast<size_t>(num_threads - 1));
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
  job_ = {.task = &task, .num_tasks = num_tasks};
  num_finished_.store(0, std::memory_order_relaxed);
  // Publishes the job. Sequentially consistent with num_sleeping_: either a worker that is about
  // to sleep sees the tasks, or this thread sees the sleeper.
  num_unclaimed_.store(num_tasks, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  TakeTasks(0);
  const auto finished = [&] { return num_finished_.load(std::memory_order_acquire) == num_tasks; };
  // A worker still holds a task. It may have lost its core, so give ours away after a while.
  while (!SpinUntil(finished)) std::this_thread::yield();
}

void ThreadPool::TakeTasks(int thread_idx) {
  int64_t num_done = 0;
  int64_t unclaimed = num_unclaimed_.load(std::memory_order_acquire);
  while (unclaimed > 0) {
    // A claim keeps its job alive until it is counted as finished, so what a successful exchange
    // took is always a task of the job that job_ holds, however late this thread came.
    if (!num_unclaimed_.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel,
                                              std::memory_order_acquire)) {
      continue;
    }
    (*job_.task)(job_.num_tasks - unclaimed, thread_idx);
    ++num_done;
    unclaimed = num_unclaimed_.load(std::memory_order_acquire);
  }
  if (num_done > 0) num_finished_.fetch_add(num_done, std::memory_order_acq_rel);
}

void ThreadPool::WorkerLoop(int thread_idx) {
  while (WaitForTasks()) TakeTasks(thread_idx);
}

bool ThreadPool::WaitForTasks() {
  const auto ready = [this] {
    return num_unclaimed_.load(std::memory_order_seq_cst) > 0 ||
           stopping_.load(std::memory_order_relaxed);
  };
  if (!SpinUntil(ready)) {
    std::unique_lock<std::mutex> lock(mutex_);
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, ready);
    num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
  }
  return !stopping_.load(std::memory_order_relaxed);
}

}  // namespace lssar
