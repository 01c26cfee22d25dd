// Added to xgrammar by deploy/xgrammar.sh, which puts calls of CountStep into its loops: without a
// limit, the source of a grammar decides how long a call takes.
#ifndef LSSAR_DEPLOY_XGRAMMAR_WORK_LIMIT_H_
#define LSSAR_DEPLOY_XGRAMMAR_WORK_LIMIT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>

namespace xgrammar {

struct WorkLimitExceeded : std::runtime_error {
  WorkLimitExceeded() : std::runtime_error("the limit of work is exceeded") {}
};
struct WorkStopped : std::runtime_error {
  WorkStopped() : std::runtime_error("the work was stopped") {}
};

// Bounds the calling thread's calls.
struct WorkLimit {
  std::int64_t num_steps = std::numeric_limits<std::int64_t>::max();  // left
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  const std::function<bool()>* should_stop = nullptr;  // polled; null: never
};
inline thread_local WorkLimit work_limit;

// Errors  throws WorkLimitExceeded, WorkStopped
inline void CountStep() {
  const std::int64_t left = --work_limit.num_steps;
  if (left >= 0 && (left & 0x3ff) != 0) return;
  if (left < 0 || std::chrono::steady_clock::now() > work_limit.deadline) {
    throw WorkLimitExceeded();
  }
  if (work_limit.should_stop != nullptr && (*work_limit.should_stop)()) throw WorkStopped();
}

}  // namespace xgrammar

#endif  // LSSAR_DEPLOY_XGRAMMAR_WORK_LIMIT_H_
