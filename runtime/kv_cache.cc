#include "runtime/kv_cache.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/page_pool.h"

namespace lssar {
namespace {

// Sequences of max_model_len in a default pool on a host. The rest of the memory is left to the
// page cache of the weights and to other processes.
constexpr int64_t kDefaultFullSequences = 4;

// The share of a device's free memory that a default pool leaves to the workspaces of later steps
// and to other processes.
constexpr int64_t kReserveShare = 16;
constexpr int64_t kMaxReserveBytes = int64_t{1} << 30;

struct PoolSize {
  int64_t num_bytes = 0;
  std::string origin;  // for the error message
};

PoolSize ChooseHostPool(const EngineOptions& options, int64_t sequence_bytes) {
  const int64_t wanted =
      std::min<int64_t>(kDefaultFullSequences, options.max_num_seqs) * sequence_bytes;
  const auto available = AvailableMemoryBytes();
  if (available && *available / 2 < wanted) return {*available / 2, "half of the available memory"};
  return {wanted, "the default pool"};
}

// A device's free memory. model_bytes: those of it that weights and activations will take.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t model_bytes = 0;

  int64_t Left() const { return free_bytes - model_bytes; }
  std::string Text() const {
    const std::string bytes = StrCat(free_bytes, " bytes");
    return model_bytes == 0 ? bytes
                            : StrCat(bytes, " less ", model_bytes, " of weights and activations");
  }
};

// Device memory has no other use, so every sequence may have its whole context.
PoolSize ChooseDevicePool(const EngineOptions& options, int64_t sequence_bytes,
                          const DeviceMemory& memory) {
  const int64_t wanted = options.max_num_seqs * sequence_bytes;
  const int64_t reserve = std::min(memory.Left() / kReserveShare, kMaxReserveBytes);
  if (wanted <= memory.Left() - reserve) return {wanted, "the default pool"};
  return {memory.Left() - reserve,
          StrCat("the device's free memory of ", memory.Text(),
                 memory.model_bytes > 0 ? " and" : " less", " a reserve of ", reserve)};
}

// memory: null on a host.
absl::StatusOr<PoolSize> ChoosePoolSize(const EngineOptions& options, int64_t sequence_bytes,
                                        const std::optional<DeviceMemory>& memory) {
  if (options.kv_cache_bytes == 0) {
    return memory ? ChooseDevicePool(options, sequence_bytes, *memory)
                  : ChooseHostPool(options, sequence_bytes);
  }
  if (memory && options.kv_cache_bytes > memory->Left()) {
    return absl::ResourceExhaustedError(
        StrCat("kv_cache_bytes = ", options.kv_cache_bytes,
               " is more than the device has free: ", memory->Text()));
  }
  return PoolSize{options.kv_cache_bytes, "kv_cache_bytes"};
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value)) return std::nullopt;  // missing, or "max": no limit
  return value;
}

void LowerTo(std::optional<int64_t>* least, std::optional<int64_t> bytes) {
  if (!bytes) return;
  *least = std::max<int64_t>(0, least->has_value() ? std::min(**least, *bytes) : *bytes);
}

// The number behind `field` and white space, on a line of its own.
std::optional<int64_t> ReadField(const std::string& path, std::string_view field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name && name == field && words >> value) return value;
  }
  return std::nullopt;
}

std::optional<int64_t> MachineBytes(const std::string& root) {
  const auto kib = ReadField(root + "/proc/meminfo", "MemAvailable:");
  return kib ? std::optional(*kib * 1024) : std::nullopt;
}

// The files of a version of control groups.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* cached;  // field of memory.stat
};

// The least that the group at `path` under `mount` and the groups above it still allow. A container
// often sees the path of the host but has its own group mounted at the top, so missing files are
// skipped. Usage includes the pages of files that were read, such as a checkpoint's; the kernel
// takes the inactive ones back before it refuses memory.
std::optional<int64_t> GroupBytes(const std::string& mount, std::string path,
                                  const GroupFiles& files) {
  std::optional<int64_t> least;
  while (true) {
    const auto limit = ReadNumber(mount + path + "/" + files.limit);
    const auto usage = ReadNumber(mount + path + "/" + files.usage);
    const auto cached = ReadField(mount + path + "/memory.stat", files.cached);
    if (limit && usage) LowerTo(&least, *limit - std::max<int64_t>(0, *usage - cached.value_or(0)));
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

// The layout with the pages that Create allocates. model_bytes: as CheckFits.
absl::StatusOr<KvLayout> ChooseLayout(const ModelConfig& config, const EngineOptions& options,
                                      int64_t model_bytes, Backend* backend) {
  KvLayout layout = LayoutOf(config, options.kv_cache_dtype, options.page_size);
  RETURN_IF_ERROR(CheckKvType(config, options.kv_cache_dtype));
  RETURN_IF_ERROR(backend->FitLayout(layout));
  const auto page_bytes = int64_t(layout.PageBytes());
  const int64_t pages_needed = layout.PagesFor(options.max_model_len);
  ASSIGN_OR_RETURN(const std::optional<int64_t> free_bytes, backend->FreeBytes());
  std::optional<DeviceMemory> memory;
  if (free_bytes) memory = {*free_bytes, model_bytes};
  ASSIGN_OR_RETURN(const PoolSize pool, ChoosePoolSize(options, pages_needed * page_bytes, memory));
  // All their tokens are counted in 32 bits.
  const int64_t num_pages = std::min<int64_t>(
      pool.num_bytes / page_bytes, std::numeric_limits<int32_t>::max() / options.page_size);
  if (num_pages < pages_needed) {
    return absl::ResourceExhaustedError(
        StrCat("the KV pool is too small: ", pool.origin, ", ", pool.num_bytes, " bytes, holds ",
               num_pages, " pages of ", options.page_size, " tokens (", page_bytes,
               " bytes each); one sequence of max_model_len = ", options.max_model_len,
               " tokens needs ", pages_needed, " pages (", pages_needed * page_bytes, " bytes)"));
  }
  layout.num_pages = int(num_pages);
  return layout;
}

}  // namespace

absl::Status KvCache::CheckFits(const ModelConfig& config, const EngineOptions& options,
                                int64_t model_bytes, Backend* backend) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> free_bytes, backend->FreeBytes());
  if (free_bytes && model_bytes > *free_bytes) return absl::OkStatus();
  return ChooseLayout(config, options, model_bytes, backend).status();
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config,
                                                         const EngineOptions& options,
                                                         Backend* backend) {
  ASSIGN_OR_RETURN(const KvLayout layout,
                   ChooseLayout(config, options, /*model_bytes=*/0, backend));
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> k, backend->Allocate(layout.PoolBytes()));
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> v, backend->Allocate(layout.ValuePoolBytes()));
  return std::unique_ptr<KvCache>(new KvCache(backend, layout, std::move(k), std::move(v)));
}

KvCache::KvCache(Backend* backend, const KvLayout& layout, std::unique_ptr<Buffer> k,
                 std::unique_ptr<Buffer> v)
    : backend_(backend),
      k_(std::move(k)),
      v_(std::move(v)),
      view_{.layout = layout, .k = k_->Address(), .v = v_->Address()} {}

void KvCache::CopyPage(int32_t from, int32_t to) {
  const PageCopy copy{.from = from, .to = to};
  backend_->CopyPages({.kv = view_, .copies = std::span(&copy, 1)});
}

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
      LowerTo(&least, GroupBytes(root + "/sys/fs/cgroup", std::move(path),
                                 {"memory.max", "memory.current", "inactive_file"}));
    } else if (controllers == "memory") {
      LowerTo(&least, GroupBytes(root + "/sys/fs/cgroup/memory", std::move(path),
                                 {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"}));
    }
  }
  return least;
}

}  // namespace lssar
