// A fixed pool of threads for loops inside one op.
#ifndef LSSAR_KERNELS_CPU_THREAD_POOL_H_
#define LSSAR_KERNELS_CPU_THREAD_POOL_H_

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lssar {

// Memory that threads write is one cache line apart.
inline constexpr size_t kCacheLineBytes = 64;

// Workers spin for 40 us after a loop, so that they are awake for the next op of the same step.
// Then they sleep (futex). DESIGN.md counts the cache lines that a loop moves between cores.
class ThreadPool {
 public:
  using Task = absl::FunctionRef<void(int64_t task_idx, int thread_idx)>;

  static constexpr int kMaxThreads = 1024;

  // `cpus`: thread i runs on cpus[i] only. Empty: where the kernel puts it. Thread 0 is the thread
  // that calls ParallelFor; it gets its former CPUs back when another thread calls, or when the
  // pool is destroyed.
  // Requires  1 <= num_threads <= kMaxThreads; cpus is empty or has num_threads CPUs that this
  //           process may use
  // Errors  std::system_error: the system gives the process no more threads
  explicit ThreadPool(int num_threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int NumThreads() const { return int(workers_.size()) + 1; }

  // Runs task(task_idx, thread_idx) once for each task_idx in [0, num_tasks); returns when all are
  // done. Each thread runs a range of adjacent tasks in rising order, so that memory read in task
  // order is one stream per thread. A thread that is done takes half of what another thread has
  // left. Which thread runs a task is random: results must not depend on thread_idx (scratch
  // memory).
  // Cost     no allocation; 1 to 2 us with two threads that still spin
  // Threads  one caller at a time; not from inside a task
  void ParallelFor(int64_t num_tasks, Task task);

  // The same, but each thread runs exactly its own range, the one that it starts with in a
  // ParallelFor of as many tasks. For the first touch of memory: the kernel puts a page into the
  // memory of the socket whose thread writes it first.
  void ParallelForOwn(int64_t num_tasks, Task task);

 private:
  // A loop, packed into one word, so that threads read and write it at once.
  struct Job {
    uint32_t number = 0;     // of the loop, from 1
    uint32_t num_units = 0;  // adjacent tasks are grouped into at most kMaxUnits units
    int num_threads = 0;     // threads [0, num_threads) take part
    bool steals = false;
    uint64_t word = 0;  // all of the above
  };
  static constexpr uint32_t kMaxUnits = 0xFFFF;
  // Threads that share a Group. Threads look for work in their own group first.
  static constexpr int kGroupThreads = 16;
  // Children of a thread in the tree by which sleeping threads wake each other.
  static constexpr int kWakeFanOut = 4;

  // The unclaimed units of a thread: [number of the loop:32][first:16][end:16]. The first thread
  // that needs a share of an older loop sets it to the thread's range in this loop. A share without
  // units stays as it is until a later loop, or until its own thread puts stolen units into it.
  struct alignas(kCacheLineBytes) Share {
    std::atomic<uint64_t> unclaimed{0};
  };
  static_assert(sizeof(Share) == kCacheLineBytes);

  struct alignas(kCacheLineBytes) Sleeper {
    std::atomic<uint32_t> is_asleep{0};  // a futex
  };
  static_assert(sizeof(Sleeper) == kCacheLineBytes);

  struct alignas(kCacheLineBytes) Group {
    // [number of the loop:32][bit per thread: its share has no units]. A hint: where to look.
    std::atomic<uint64_t> empty_shares{0};
    std::atomic<uint64_t> num_finished{0};  // units of all loops
  };
  static_assert(sizeof(Group) == kCacheLineBytes);

  static uint64_t Pack(const Job& job);
  static Job Unpack(uint64_t word);
  // False: a later loop has begun, so this one has ended.
  bool IsCurrent(const Job& job) const { return job_.load(std::memory_order_seq_cst) == job.word; }

  void Run(int64_t num_tasks, Task task, bool steals);
  void WorkerLoop(int thread_idx);
  // Ends the workers.
  void Stop();
  // Waits for another job than `seen`. nullopt: the pool is being destroyed.
  std::optional<uint64_t> WaitForJob(int thread_idx, uint64_t seen);
  // Claims and runs units until no thread of the job has one.
  void RunUnits(const Job& job, int thread_idx);
  void RunUnit(const Job& job, uint32_t unit, int thread_idx);
  // Sets the share of `thread_idx` to its range, if it is of an older loop.
  void StartShare(const Job& job, int thread_idx);
  // Moves half of another thread's units to the share of `thread_idx`. False: no thread has any.
  bool Steal(const Job& job, int thread_idx);
  bool TakeHalf(const Job& job, int victim, int thread_idx);
  void SetEmpty(const Job& job, int thread_idx, bool is_empty);
  // Wakes the sleeping children of a thread.
  void WakeChildren(int thread_idx, int num_threads);
  void WaitUntilFinished();
  void PinCaller();
  void UnpinCaller();
  template <typename Ready>
  bool SpinUntil(std::chrono::nanoseconds limit, const Ready& ready) const;

  const std::vector<int> cpus_;
  const bool is_oversubscribed_;  // more threads than CPUs: threads spin for a short time only
  const std::unique_ptr<Share[]> shares_;      // by thread
  const std::unique_ptr<Sleeper[]> sleepers_;  // by thread
  const std::unique_ptr<Group[]> groups_;
  const int num_groups_;

  // Written by the caller at the start of a loop, read by all.
  alignas(kCacheLineBytes) std::atomic<uint64_t> job_{0};
  std::atomic<const Task*> task_{nullptr};  // read by threads that have claimed a unit
  std::atomic<int64_t> num_tasks_{0};
  std::atomic<bool> is_stopping_{false};
  // Written only when the caller sleeps: a futex.
  alignas(kCacheLineBytes) std::atomic<uint32_t> is_caller_asleep_{0};
  // The caller's own.
  alignas(kCacheLineBytes) uint64_t num_issued_ = 0;  // units of all loops
  uint32_t job_number_ = 0;
  pid_t pinned_caller_ = 0;  // 0: none
  cpu_set_t caller_cpus_ = {};
  std::vector<std::thread> workers_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_THREAD_POOL_H_
