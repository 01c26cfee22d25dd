// Threads that parse and tokenise requests, so that the I/O threads never block.
#ifndef LSSAR_SERVER_HTTP_WORKER_POOL_H_
#define LSSAR_SERVER_HTTP_WORKER_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lssar {

class WorkerPool {
 public:
  WorkerPool(int num_threads, size_t max_queued) : max_queued_(max_queued) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  // Runs what is queued, then ends.
  ~WorkerPool() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False: the queue is full.
  bool TrySubmit(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      if (queue_.size() >= max_queued_) return false;
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
    return true;
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_WORKER_POOL_H_
