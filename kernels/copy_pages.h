// The memory that CopyPages copies, for every backend.
#ifndef LSSAR_KERNELS_COPY_PAGES_H_
#define LSSAR_KERNELS_COPY_PAGES_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "kernels/ops.h"

namespace lssar {

// The blocks of one page in one pool: one per layer and head, stride_bytes apart.
struct PageBlocks {
  void* to;
  const void* from;
  size_t num_blocks;
  size_t block_bytes;
  size_t stride_bytes;  // of `to` and of `from`
};

// Calls `copy` once for K and once for V of each page.
void ForEachPageCopy(const CopyPagesArgs& args, absl::FunctionRef<void(const PageBlocks&)> copy);

// CopyPages for pages in host memory.
void CopyHostPages(const CopyPagesArgs& args);

}  // namespace lssar

#endif  // LSSAR_KERNELS_COPY_PAGES_H_
