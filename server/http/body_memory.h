// Bounds the memory that the bodies of a port's requests take, in total and per client address.
#ifndef LSSAR_SERVER_HTTP_BODY_MEMORY_H_
#define LSSAR_SERVER_HTTP_BODY_MEMORY_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"

namespace lssar {

// Threads  any
class BodyMemory {
 public:
  // In bytes. `max_per_address` zero: no limit, for a port behind a proxy.
  BodyMemory(int64_t max_total, int64_t max_per_address)
      : max_total_(max_total), max_per_address_(max_per_address) {}

  // The bodies of `address` take `change` bytes more. An error names the limit that they exceed;
  // they count all the same, until a negative change.
  // Errors  RESOURCE_EXHAUSTED: too much of this address; UNAVAILABLE: too much in total
  absl::Status Add(const std::string& address, int64_t change);

 private:
  const int64_t max_total_;
  const int64_t max_per_address_;
  std::mutex mutex_;
  int64_t total_ = 0;
  std::unordered_map<std::string, int64_t> by_address_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_BODY_MEMORY_H_
