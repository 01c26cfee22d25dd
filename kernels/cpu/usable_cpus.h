// The CPUs that this process may use: its affinity mask and the CPU quota of its cgroup.
#ifndef LSSAR_KERNELS_CPU_USABLE_CPUS_H_
#define LSSAR_KERNELS_CPU_USABLE_CPUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar {

// CPUs of the calling thread's affinity mask, in rising order. Empty: the kernel does not tell.
std::vector<int> UsableCpus();

// CPUs' worth of time that the cgroup (v2 cpu.max, v1 cpu.cfs_quota_us) of this process and the
// groups above it grant: 1.5 is one and a half CPUs. nullopt: no limit.
// `root`: the file system's root, for tests
std::optional<double> CpuQuota(const std::string& root = "");

// Threads that run without waiting for each other: the usable CPUs, at most the whole CPUs of the
// quota, at least 1.
int NumUsableCpus();

// Parses "0-7,16-23" into the CPUs of the list, in its order.
// Errors  INVALID_ARGUMENT, "it must be ...": bad syntax, a CPU above 1023, or one twice
absl::StatusOr<std::vector<int>> ParseCpuList(std::string_view text);

// The reverse: "0-7,16-23".
std::string FormatCpuList(const std::vector<int>& cpus);

// What is wrong with `num_threads` threads on `usable` CPUs with `quota`; empty: nothing.
std::vector<std::string> DescribeTooManyThreads(int num_threads, size_t num_usable,
                                                std::optional<double> quota);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_USABLE_CPUS_H_
