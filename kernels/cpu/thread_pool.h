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

// Workers spin for some tens of microseconds after a loop, so that the next op of the same step
// finds them awake, and sleep after that.
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

  int NumThreads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs task(task_idx, thread_idx) once for each task_idx in [0, num_tasks) and returns when all
  // are done. Each thread has a run of adjacent tasks, num_tasks / NumThreads() of them, and takes
  // them in rising order, so that memory read task by task is one stream to it. Who is done helps
  // the others from their runs' ends: which thread takes which task is chance, and a result must
  // not depend on thread_idx, which is for scratch memory.
  // Requires num_tasks < 2^32
  // Cost     no allocation; a microsecond or two when the workers still spin
  // Threads  one caller at a time; not from inside a task
  void ParallelFor(int64_t num_tasks, Task task);

 private:
  // A thread's tasks that nobody has claimed: [upper half, lower half). A cache line of its own.
  struct alignas(64) Share {
    std::atomic<uint64_t> unclaimed{0};
  };

  enum class ShareEnd : uint8_t { kFirst, kLast };

  // The share's first task, or its last; none is left: nullopt.
  static std::optional<int64_t> Claim(Share& share, ShareEnd end);
  // Takes tasks until none is left. Returns when this thread found none.
  void TakeTasks(int thread_idx);
  void WorkerLoop(int thread_idx);
  // Returns when there is another job than number `seen_job`, which it becomes; false when the pool
  // is being destroyed.
  bool WaitForJob(uint64_t& seen_job);

  const std::unique_ptr<Share[]> shares_;  // by thread
  // A separate cache line for each word that threads write.
  alignas(64) std::atomic<uint64_t> job_number_{0};
  alignas(64) std::atomic<int64_t> num_finished_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  // Written while no task is claimed or claimable; read only by a thread that holds a claim.
  alignas(64) const Task* task_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_THREAD_POOL_H_
