// Where the pages of a CopyPages lie, for every backend.
#ifndef LSSAR_KERNELS_COPY_PAGES_H_
#define LSSAR_KERNELS_COPY_PAGES_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "kernels/ops.h"

namespace lssar {

// The blocks of one page in one pool, one for each layer and head, at even distances.
struct PageBlocks {
  void* to;
  const void* from;
  size_t num_blocks;
  size_t block_bytes;
  size_t stride_bytes;  // from one to the next, in both places
};

// Calls `copy` for K and for V of each page.
void ForEachPageCopy(const CopyPagesArgs& args, absl::FunctionRef<void(const PageBlocks&)> copy);

// CopyPages for the backends whose pages lie in host memory.
void CopyHostPages(const CopyPagesArgs& args);

}  // namespace lssar

#endif  // LSSAR_KERNELS_COPY_PAGES_H_
