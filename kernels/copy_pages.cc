#include "kernels/copy_pages.h"

#include <cstring>

#include "kernels/check.h"

namespace lssar {

void ForEachPageRun(const CopyPagesArgs& args,
                    absl::FunctionRef<void(void* to, const void* from, size_t num_bytes)> copy) {
  const KvLayout& layout = args.kv.layout;
  const size_t element_bytes = BytesOf(layout.dtype);
  // The heads of one page and layer lie one behind the other, each with its scales.
  const size_t num_bytes = size_t(layout.num_heads) * layout.BlockStride() * element_bytes;
  for (const PageCopy& pages : args.copies) {
    LSSAR_CHECK(pages.from >= 0 && pages.from < layout.num_pages);
    LSSAR_CHECK(pages.to >= 0 && pages.to < layout.num_pages && pages.to != pages.from);
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      const size_t from = layout.BlockIndex(layer, pages.from, 0) * element_bytes;
      const size_t to = layout.BlockIndex(layer, pages.to, 0) * element_bytes;
      for (void* pool : {args.kv.k, args.kv.v}) {
        copy(static_cast<std::byte*>(pool) + to, static_cast<std::byte*>(pool) + from, num_bytes);
      }
    }
  }
}

void CopyHostPages(const CopyPagesArgs& args) {
  ForEachPageRun(
      args, [](void* to, const void* from, size_t num_bytes) { std::memcpy(to, from, num_bytes); });
}

}  // namespace lssar
