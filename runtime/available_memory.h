// How much memory this process may still take.
#ifndef LSSAR_RUNTIME_AVAILABLE_MEMORY_H_
#define LSSAR_RUNTIME_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace lssar {

// Bytes: the least of what the machine has available (MemAvailable) and what each control group
// around this process still allows (v2, and v1's memory controller). nullopt: the kernel does not
// say. `root` stands before every path, for tests.
std::optional<int64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace lssar

#endif  // LSSAR_RUNTIME_AVAILABLE_MEMORY_H_
