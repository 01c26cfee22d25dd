// Bounds the memory that the requests, or the replies, of all calls take together.
#ifndef LSSAR_SERVER_API_MEMORY_BUDGET_H_
#define LSSAR_SERVER_API_MEMORY_BUDGET_H_

#include <cstdint>
#include <mutex>
#include <string_view>

#include "absl/status/status.h"

namespace lssar {

// Threads  any
class MemoryBudget {
 public:
  // `what` takes the memory, for errors: "requests". Static storage.
  MemoryBudget(std::string_view what, int64_t max_bytes) : what_(what), max_bytes_(max_bytes) {}

  // An empty budget has room for anything: so the largest request is accepted at some time.
  // Errors  RESOURCE_EXHAUSTED: with what is held it would be more than max_bytes; nothing is taken
  absl::Status Take(int64_t num_bytes);
  void Return(int64_t num_bytes);

 private:
  const std::string_view what_;
  const int64_t max_bytes_;
  std::mutex mutex_;
  int64_t num_bytes_ = 0;  // held
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_MEMORY_BUDGET_H_
