#include "runtime/kv_cache.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/str_cat.h"
#include "models/page_pool.h"
#include "runtime/available_memory.h"

namespace lssar {
namespace {

// What a pool of unstated size is made for; the rest of the memory is left to the weights'
// page cache and to whoever else lives on the machine.
constexpr int64_t kDefaultFullSequences = 4;

// Of a device's free memory, left for what a backend takes as steps come, and for other processes.
constexpr int64_t kReserveShare = 16;
constexpr int64_t kMaxReserveBytes = int64_t{1} << 30;

// A pool full of idle pages has no runs to give: what one Acquire frees the next one takes. So when
// a run begins with room for fewer pages than these, as many idle ones are freed, as long as no
// more than this share of the pool is free.
constexpr int kRunPages = 16;
constexpr int kFreeShare = 8;

struct PoolSize {
  int64_t num_bytes = 0;
  std::string origin;  // for the message that refuses it
};

PoolSize ChooseHostPool(const EngineOptions& options, int64_t sequence_bytes) {
  const int64_t wanted =
      std::min<int64_t>(kDefaultFullSequences, options.max_num_seqs) * sequence_bytes;
  const auto available = AvailableMemoryBytes();
  if (available && *available / 2 < wanted) return {*available / 2, "half of the available memory"};
  return {wanted, "the default pool"};
}

// Its memory serves nothing else, so every sequence may have its whole context.
PoolSize ChooseDevicePool(const EngineOptions& options, int64_t sequence_bytes,
                          int64_t free_bytes) {
  const int64_t wanted = options.max_num_seqs * sequence_bytes;
  const int64_t reserve = std::min(free_bytes / kReserveShare, kMaxReserveBytes);
  if (wanted <= free_bytes - reserve) return {wanted, "the default pool"};
  return {free_bytes - reserve,
          StrCat("the device's free memory of ", free_bytes, " bytes less a reserve of ", reserve)};
}

absl::StatusOr<PoolSize> ChoosePoolSize(const EngineOptions& options, int64_t sequence_bytes,
                                        Backend& backend) {
  const absl::StatusOr<std::optional<int64_t>> free_bytes = backend.FreeBytes();
  if (!free_bytes.ok()) return free_bytes.status();
  if (options.kv_cache_bytes == 0) {
    return *free_bytes ? ChooseDevicePool(options, sequence_bytes, **free_bytes)
                       : ChooseHostPool(options, sequence_bytes);
  }
  if (*free_bytes && options.kv_cache_bytes > **free_bytes) {
    return absl::ResourceExhaustedError(StrCat("kv_cache_bytes = ", options.kv_cache_bytes,
                                               " is more than the device has free: ", **free_bytes,
                                               " bytes"));
  }
  return PoolSize{options.kv_cache_bytes, "kv_cache_bytes"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config,
                                                         const EngineOptions& options,
                                                         Backend* backend) {
  KvLayout layout = LayoutOf(config, options.kv_cache_dtype, options.page_size);
  const absl::Status fits = backend->FitLayout(layout);
  if (!fits.ok()) return fits;
  const auto page_bytes = int64_t(layout.PageBytes());
  const int64_t pages_needed = layout.PagesFor(options.max_model_len);
  const absl::StatusOr<PoolSize> pool =
      ChoosePoolSize(options, pages_needed * page_bytes, *backend);
  if (!pool.ok()) return pool.status();
  const int64_t num_pages =
      std::min<int64_t>(pool->num_bytes / page_bytes, std::numeric_limits<int32_t>::max());
  if (num_pages < pages_needed) {
    return absl::ResourceExhaustedError(
        StrCat("the KV pool is too small: ", pool->origin, ", ", pool->num_bytes, " bytes, holds ",
               num_pages, " pages of ", options.page_size, " tokens (", page_bytes,
               " bytes each); one sequence of max_model_len = ", options.max_model_len,
               " tokens needs ", pages_needed, " pages (", pages_needed * page_bytes, " bytes)"));
  }
  layout.num_pages = int(num_pages);
  absl::StatusOr<std::unique_ptr<Buffer>> k = backend->Allocate(layout.PoolBytes());
  if (!k.ok()) return k.status();
  absl::StatusOr<std::unique_ptr<Buffer>> v = backend->Allocate(layout.PoolBytes());
  if (!v.ok()) return v.status();
  return std::unique_ptr<KvCache>(new KvCache(backend, layout, *std::move(k), *std::move(v)));
}

KvCache::KvCache(Backend* backend, const KvLayout& layout, std::unique_ptr<Buffer> k,
                 std::unique_ptr<Buffer> v)
    : backend_(backend),
      k_(std::move(k)),
      v_(std::move(v)),
      view_{.layout = layout, .k = k_->Address(), .v = v_->Address()},
      pages_(layout.num_pages),
      prefixes_(&pages_, layout.page_size) {}

bool KvCache::Acquire(int num_pages, std::vector<int32_t>* pages) {
  if (num_pages > NumAvailable()) return false;
  while (pages_.NumFree() < num_pages) prefixes_.EvictOldest();
  if (!pages_.HasRoom(*pages, kRunPages)) {
    const int most_free = std::min(pages_.NumFree() + kRunPages, pages_.NumPages() / kFreeShare);
    while (pages_.NumFree() < most_free && pages_.NumIdle() > 0) prefixes_.EvictOldest();
  }
  return pages_.Acquire(num_pages, pages);
}

void KvCache::CopyPage(int32_t from, int32_t to) {
  const PageCopy copy{.from = from, .to = to};
  backend_->CopyPages({.kv = view_, .copies = std::span(&copy, 1)});
}

}  // namespace lssar
