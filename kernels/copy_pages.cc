#include "kernels/copy_pages.h"

#include <cstring>

#include "kernels/check.h"

namespace lssar {

void CopyHostPages(const CopyPagesArgs& args) {
  const KvLayout& layout = args.kv.layout;
  const size_t element_bytes = BytesOf(layout.dtype);
  // The heads of one page and layer lie one behind the other, each with its scales.
  const size_t num_bytes = size_t(layout.num_heads) * layout.BlockStride() * element_bytes;
  for (const PageCopy& copy : args.copies) {
    LSSAR_CHECK(copy.from >= 0 && copy.from < layout.num_pages);
    LSSAR_CHECK(copy.to >= 0 && copy.to < layout.num_pages && copy.to != copy.from);
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      const size_t from = layout.BlockIndex(layer, copy.from, 0) * element_bytes;
      const size_t to = layout.BlockIndex(layer, copy.to, 0) * element_bytes;
      for (void* pool : {args.kv.k, args.kv.v}) {
        std::memcpy(static_cast<char*>(pool) + to, static_cast<char*>(pool) + from, num_bytes);
      }
    }
  }
}

}  // namespace lssar
