// Work that is done again and again on a thread of its own.
#ifndef LSSAR_BASE_PERIODIC_THREAD_H_
#define LSSAR_BASE_PERIODIC_THREAD_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/thread_name.h"

namespace lssar {

// Calls `work` after each `interval`, for the first time after one, until it returns false.
class PeriodicThread {
 public:
  // `name`: as of NameThisThread
  PeriodicThread(const char* name, Clock::duration interval, std::function<bool()> work)
      : work_(std::move(work)), thread_([this, name, interval] {
          NameThisThread(name);
          while (Wait(interval) && work_()) {
          }
        }) {}
  // Waits for running work.
  ~PeriodicThread() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    stopped_.notify_all();
    thread_.join();
  }

 private:
  // False: it stops.
  bool Wait(Clock::duration interval) {
    std::unique_lock lock(mutex_);
    return !stopped_.wait_for(lock, interval, [this] { return is_stopping_; });
  }

  const std::function<bool()> work_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool is_stopping_ = false;
  std::thread thread_;  // last: uses the members above
};

}  // namespace lssar

#endif  // LSSAR_BASE_PERIODIC_THREAD_H_
