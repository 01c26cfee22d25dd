#include "runtime/available_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

namespace lssar {
namespace {

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value)) return std::nullopt;  // missing, or "max": no limit
  return value;
}

void Lower(std::optional<int64_t>* least, std::optional<int64_t> bytes) {
  if (!bytes) return;
  *least = std::max<int64_t>(0, least->has_value() ? std::min(**least, *bytes) : *bytes);
}

std::optional<int64_t> MachineBytes(const std::string& root) {
  std::ifstream meminfo(root + "/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kField = "MemAvailable:";
    if (!line.starts_with(kField)) continue;
    std::istringstream rest(line.substr(kField.size()));
    int64_t kib = 0;
    if (rest >> kib) return kib * 1024;
  }
  return std::nullopt;
}

// What the group at `path` under `mount`, and every group above it, still allows. A container often
// sees the path of the host but has its own group mounted at the top, so missing files are skipped.
std::optional<int64_t> GroupBytes(const std::string& mount, std::string path,
                                  const char* limit_file, const char* usage_file) {
  std::optional<int64_t> least;
  while (true) {
    const auto limit = ReadNumber(mount + path + "/" + limit_file);
    const auto usage = ReadNumber(mount + path + "/" + usage_file);
    if (limit && usage) Lower(&least, *limit - *usage);
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

}  // namespace

std::optional<int64_t> AvailableMemoryBytes(const std::string& root) {
  std::optional<int64_t> least = MachineBytes(root);
  std::ifstream groups(root + "/proc/self/cgroup");  // lines of id:controllers:path
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      Lower(&least,
            GroupBytes(root + "/sys/fs/cgroup", std::move(path), "memory.max", "memory.current"));
    } else if (controllers == "memory") {
      Lower(&least, GroupBytes(root + "/sys/fs/cgroup/memory", std::move(path),
                               "memory.limit_in_bytes", "memory.usage_in_bytes"));
    }
  }
  return least;
}

}  // namespace lssar
