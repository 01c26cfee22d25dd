// The paged K and V pools, in the memory of the backend that runs on them.
#ifndef LSSAR_RUNTIME_KV_CACHE_H_
#define LSSAR_RUNTIME_KV_CACHE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/kv_layout.h"
#include "models/config.h"
#include "runtime/engine.h"
#include "runtime/page_allocator.h"

namespace lssar {

class KvCache {
 public:
  // Sizes the pools from `options` (engine.h: kv_bytes, max_context, page_tokens, kv_type).
  // Errors  RESOURCE_EXHAUSTED: not enough for one sequence of max_context, with the arithmetic;
  //         or the backend has not that much memory.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const ModelConfig& config,
                                                         const EngineOptions& options,
                                                         Backend* backend);

  const KvView& View() const { return view_; }
  const KvLayout& Layout() const { return view_.layout; }
  PageAllocator& Pages() { return pages_; }
  const PageAllocator& Pages() const { return pages_; }

 private:
  KvCache(const KvLayout& layout, std::unique_ptr<Buffer> k, std::unique_ptr<Buffer> v);

  std::unique_ptr<Buffer> k_, v_;
  KvView view_;
  PageAllocator pages_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_KV_CACHE_H_
