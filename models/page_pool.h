// The K/V pages of one sequence alone: what a self-check or a test runs a model on. (A server's
// pages are the runtime's.)
#ifndef LSSAR_MODELS_PAGE_POOL_H_
#define LSSAR_MODELS_PAGE_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/kv_layout.h"
#include "models/config.h"

namespace lssar {

struct PagePool {
  std::unique_ptr<Buffer> k, v;
  KvView view;
  std::vector<int32_t> pages;  // of the sequence, in token order
};

// Pages for `num_tokens` tokens of the shape that `layout` says; its num_pages is set here.
// Errors  RESOURCE_EXHAUSTED: no memory
absl::StatusOr<PagePool> MakePagePool(KvLayout layout, int num_tokens, Backend* backend);

// The layout of a model's K/V, without pages yet.
KvLayout LayoutOf(const ModelConfig& config, DType kv_cache_dtype, int page_size);

}  // namespace lssar

#endif  // LSSAR_MODELS_PAGE_POOL_H_
