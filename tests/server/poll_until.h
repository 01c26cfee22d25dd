// Waits in tests for what another thread does.
#ifndef LSSAR_TESTS_SERVER_POLL_UNTIL_H_
#define LSSAR_TESTS_SERVER_POLL_UNTIL_H_

#include <chrono>
#include <functional>
#include <thread>

namespace lssar {

// True as soon as `condition` holds. False after two minutes: only a hang reaches them.
inline bool PollUntil(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_POLL_UNTIL_H_
