// The paged K and V pools, in the memory of the backend that runs on them.
#ifndef LSSAR_RUNTIME_KV_CACHE_H_
#define LSSAR_RUNTIME_KV_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/kv_layout.h"
#include "models/config.h"
#include "runtime/engine.h"
#include "runtime/page_allocator.h"
#include "runtime/prefix_cache.h"

namespace lssar {

class KvCache {
 public:
  // Sizes the pools from `options` (engine.h: kv_cache_bytes, max_model_len, page_size, kv_cache_dtype).
  // Errors  RESOURCE_EXHAUSTED: not enough for one sequence of max_model_len, with the arithmetic;
  //         or the backend has not that much memory.
  // `backend` must outlive the cache.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const ModelConfig& config,
                                                         const EngineOptions& options,
                                                         Backend* backend);

  const KvView& View() const { return view_; }
  const KvLayout& Layout() const { return view_.layout; }
  PageAllocator& Pages() { return pages_; }
  const PageAllocator& Pages() const { return pages_; }
  PrefixCache& Prefixes() { return prefixes_; }

  // Pages that can be had: free ones and idle ones.
  int NumAvailable() const { return pages_.NumFree() + pages_.NumIdle(); }
  // As PageAllocator::Acquire, but idle pages go before it fails, the oldest first. Some go sooner,
  // where a run of pages would begin with little room.
  bool Acquire(int num_pages, std::vector<int32_t>* pages);
  void CopyPage(int32_t from, int32_t to);

 private:
  KvCache(Backend* backend, const KvLayout& layout, std::unique_ptr<Buffer> k,
          std::unique_ptr<Buffer> v);

  Backend* const backend_;
  std::unique_ptr<Buffer> k_, v_;
  KvView view_;
  PageAllocator pages_;
  PrefixCache prefixes_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_KV_CACHE_H_
