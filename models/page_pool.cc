#include "models/page_pool.h"

#include <numeric>
#include <utility>

namespace lssar {

absl::StatusOr<PagePool> MakePagePool(KvLayout layout, int num_tokens, Backend* backend) {
  const absl::Status fits = backend->FitLayout(layout);
  if (!fits.ok()) return fits;
  layout.num_pages = layout.PagesFor(num_tokens);
  PagePool pool;
  for (std::unique_ptr<Buffer>* buffer : {&pool.k, &pool.v}) {
    absl::StatusOr<std::unique_ptr<Buffer>> allocated = backend->Allocate(layout.PoolBytes());
    if (!allocated.ok()) return allocated.status();
    *buffer = *std::move(allocated);
  }
  pool.view = {.layout = layout, .k = pool.k->Address(), .v = pool.v->Address()};
  pool.pages.resize(size_t(layout.num_pages));
  std::iota(pool.pages.begin(), pool.pages.end(), 0);
  return pool;
}

KvLayout LayoutOf(const ModelConfig& config, DType kv_cache_dtype, int page_size) {
  return {.num_layers = config.num_hidden_layers,
          .num_kv_heads = config.num_attention_heads,
          .head_dim = config.HeadDim(),
          .page_size = page_size,
          .num_pages = 0,
          .dtype = kv_cache_dtype};
}

}  // namespace lssar
