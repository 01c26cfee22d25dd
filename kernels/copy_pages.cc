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
    const KvBlock to = layout.Block(0, pages.to, 0), from = layout.Block(0, pages.from, 0);
    const auto copy_in = [&](void* pool, size_t to_block, size_t from_block, size_t block_stride,
                             size_t head_stride) {
      std::byte* const first = static_cast<std::byte*>(pool);
      copy({.to = first + to_block * element_bytes,
            .from = first + from_block * element_bytes,
            .num_blocks = size_t(layout.num_layers) * size_t(layout.num_kv_heads),
            .block_bytes = block_stride * element_bytes,
            .stride_bytes = head_stride * element_bytes});
    };
    copy_in(args.kv.k, to.k, from.k, layout.BlockStride(), layout.HeadStride());
    copy_in(args.kv.v, to.v, from.v, layout.ValueBlockStride(), layout.ValueHeadStride());
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
