#include "kernels/copy_pages.h"

#include <cstring>

#include "base/check.h"

namespace lssar {

void ForEachPageCopy(const CopyPagesArgs& args, absl::FunctionRef<void(const PageBlocks&)> copy) {
  const KvLayout& layout = args.kv.layout;
  const size_t element_bytes = BytesOf(layout.dtype);
  for (const PageCopy& pages : args.copies) {
    LSSAR_CHECK(pages.from >= 0 && pages.from < layout.num_pages);
    LSSAR_CHECK(pages.to >= 0 && pages.to < layout.num_pages && pages.to != pages.from);
    for (void* pool : {args.kv.k, args.kv.v}) {
      std::byte* const first = static_cast<std::byte*>(pool);
      copy({.to = first + layout.BlockIndex(0, pages.to, 0) * element_bytes,
            .from = first + layout.BlockIndex(0, pages.from, 0) * element_bytes,
            .num_blocks = size_t(layout.num_layers) * size_t(layout.num_kv_heads),
            .block_bytes = layout.BlockStride() * element_bytes,
            .stride_bytes = layout.HeadStride() * element_bytes});
    }
  }
}

void CopyHostPages(const CopyPagesArgs& args) {
  ForEachPageCopy(args, [](const PageBlocks& blocks) {
    for (size_t i = 0; i < blocks.num_blocks; ++i) {
      std::memcpy(static_cast<std::byte*>(blocks.to) + i * blocks.stride_bytes,
                  static_cast<const std::byte*>(blocks.from) + i * blocks.stride_bytes,
                  blocks.block_bytes);
    }
  });
}

}  // namespace lssar
