// CopyPages for the backends whose pages lie in host memory.
#ifndef LSSAR_KERNELS_COPY_PAGES_H_
#define LSSAR_KERNELS_COPY_PAGES_H_

#include "kernels/ops.h"

namespace lssar {

void CopyHostPages(const CopyPagesArgs& args);

}  // namespace lssar

#endif  // LSSAR_KERNELS_COPY_PAGES_H_
