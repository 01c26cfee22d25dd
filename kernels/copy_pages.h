// Where the pages of a CopyPages lie, for every backend.
#ifndef LSSAR_KERNELS_COPY_PAGES_H_
#define LSSAR_KERNELS_COPY_PAGES_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "kernels/ops.h"

namespace lssar {

// One run of bytes for each layer of each copy, K and V apart.
void ForEachPageRun(const CopyPagesArgs& args,
                    absl::FunctionRef<void(void* to, const void* from, size_t num_bytes)> copy);

// CopyPages for the backends whose pages lie in host memory.
void CopyHostPages(const CopyPagesArgs& args);

}  // namespace lssar

#endif  // LSSAR_KERNELS_COPY_PAGES_H_
