#include "kernels/cpu/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr int kMaxCpu = CPU_SETSIZE - 1;

std::optional<double> ReadNumber(std::istream& file) {
  double value = 0;
  if (!(file >> value)) return std::nullopt;  // missing, or "max": no limit
  return value;
}

// quota / period of one group.
std::optional<double> QuotaOfV2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  const auto quota = ReadNumber(file);
  const auto period = ReadNumber(file);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

std::optional<double> QuotaOfV1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"),
      period_file(folder + "/cpu.cfs_period_us");
  const auto quota = ReadNumber(quota_file);
  const auto period = ReadNumber(period_file);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;  // -1: no limit
  return *quota / *period;
}

// The least quota of the group at `path` under `mount` and the groups above it. A container often
// sees the path of the host but has its own group mounted at the top: missing files are skipped.
template <typename QuotaOf>
std::optional<double> LeastQuota(const std::string& mount, std::string path,
                                 const QuotaOf& quota_of) {
  std::optional<double> least;
  while (true) {
    if (const auto quota = quota_of(mount + path)) {
      least = least ? std::min(*least, *quota) : *quota;
    }
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

std::optional<int> ParseCpu(std::string_view text) {
  int cpu = 0;
  const bool has_digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (!has_digits || !absl::SimpleAtoi(std::string(text), &cpu) || cpu > kMaxCpu) {
    return std::nullopt;
  }
  return cpu;
}

}  // namespace

std::vector<int> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu <= kMaxCpu; ++cpu) {
    if (CPU_ISSET(size_t(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::optional<double> CpuQuota(const std::string& root) {
  std::optional<double> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/path", v2: "0::/path"
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    std::optional<double> quota;
    if (controllers.empty()) {
      quota = LeastQuota(root + "/sys/fs/cgroup", path, QuotaOfV2);
    } else {
      const std::vector<std::string> names = absl::StrSplit(controllers, ',');
      if (std::ranges::find(names, "cpu") == names.end()) continue;
      quota = LeastQuota(root + "/sys/fs/cgroup/cpu", path, QuotaOfV1);
    }
    if (quota) least = least ? std::min(*least, *quota) : *quota;
  }
  return least;
}

int NumUsableCpus() {
  size_t count = UsableCpus().size();
  if (count == 0) count = std::thread::hardware_concurrency();
  if (const auto quota = CpuQuota()) count = std::min(count, size_t(*quota));
  return std::max(1, int(count));
}

absl::StatusOr<std::vector<int>> ParseCpuList(std::string_view text) {
  const absl::Status error =
      absl::InvalidArgumentError(StrCat("it must be a list of CPU numbers and ranges, [0, ",
                                        kMaxCpu, "], each CPU once, such as 0-7,16-23"));
  std::vector<int> cpus;
  const std::string list(text);
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(list, ','))) {
    const size_t dash = part.find('-');
    const auto first = ParseCpu(std::string_view(part).substr(0, dash));
    const auto last = dash == part.npos ? first : ParseCpu(std::string_view(part).substr(dash + 1));
    if (!first || !last || *first > *last) return error;
    for (int cpu = *first; cpu <= *last; ++cpu) {
      if (std::ranges::find(cpus, cpu) != cpus.end()) return error;
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

std::string FormatCpuList(const std::vector<int>& cpus) {
  std::string list;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    list += StrCat(list.empty() ? "" : ",", cpus[i]);
    if (last > i) list += StrCat("-", cpus[last]);
    i = last + 1;
  }
  return list;
}

std::vector<std::string> DescribeTooManyThreads(int num_threads, size_t num_usable,
                                                std::optional<double> quota) {
  std::vector<std::string> warnings;
  if (num_usable > 0 && size_t(num_threads) > num_usable) {
    warnings.push_back(StrCat("--threads ", num_threads, ": this process may use ", num_usable,
                              " CPUs (its affinity mask), so the threads wait for each other"));
  }
  if (quota && num_threads > *quota) {
    std::ostringstream cpus;
    cpus << std::setprecision(3) << *quota;
    warnings.push_back(StrCat("--threads ", num_threads, ": the cgroup's quota is ", cpus.str(),
                              " CPUs, so the kernel stops all threads for a part of each period"));
  }
  return warnings;
}

}  // namespace lssar
