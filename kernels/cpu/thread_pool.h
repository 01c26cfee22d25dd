// A fixed pool of threads for loops inside one op.
#ifndef LSSAR_KERNELS_CPU_THREAD_POOL_H_
#define LSSAR_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lssar {

// Workers spin for 40 us after a loop, so that they are awake for the next op of the same step.
// Then they sleep.
class ThreadPool {
 public:
  using Task = absl::FunctionRef<void(int64_t task_idx, int thread_idx)>;

  // Requires  num_threads >= 1; the caller of ParallelFor counts as one
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Cores that this process may run on.
  static int NumUsableCores();

  int NumThreads() const { return int(workers_.size()) + 1; }

  // Runs task(task_idx, thread_idx) once for each task_idx in [0, num_tasks); returns when all are
  // done. Each thread runs a range of adjacent tasks in rising order, so that memory read in task
  // order is one stream per thread. A thread that is done steals from the ends of the other ranges.
  // Which thread runs a task is random: results must not depend on thread_idx (scratch memory).
  // Requires  num_tasks < 2^32
  // Cost     no allocation; 1 to 2 us if the workers still spin
  // Threads  one caller at a time; not from inside a task
  void ParallelFor(int64_t num_tasks, Task task);

 private:
  // The unclaimed tasks of a thread: [upper half, lower half). On its own cache line.
  struct alignas(64) Share {
    std::atomic<uint64_t> unclaimed{0};
  };

  enum class ShareEnd : uint8_t { kFirst, kLast };

  // Claims the first or the last task of a share. nullopt: none is left.
  static std::optional<int64_t> Claim(Share& share, ShareEnd end);
  // Claims and runs tasks until no share has one.
  void RunTasks(int thread_idx);
  void WorkerLoop(int thread_idx);
  // Waits for a job with another number than *seen_job and sets *seen_job to it. False: the pool is
  // being destroyed.
  bool WaitForJob(uint64_t* seen_job);

  const std::unique_ptr<Share[]> shares_;  // by thread
  // Words that several threads write are on separate cache lines.
  alignas(64) std::atomic<uint64_t> job_number_{0};
  alignas(64) std::atomic<int64_t> num_finished_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  // Written only while no task is claimed or can be; read only by a thread with a claimed task.
  alignas(64) const Task* task_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_THREAD_POOL_H_
