// The memory that this process takes from the system.
#ifndef LSSAR_TESTS_SERVER_RESIDENT_MEMORY_H_
#define LSSAR_TESTS_SERVER_RESIDENT_MEMORY_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace lssar {

inline int64_t ResidentMib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6)) / 1024;
  }
  ADD_FAILURE() << "/proc/self/status has no VmRSS";
  return 0;
}

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_RESIDENT_MEMORY_H_
