// Buffers in host memory, for the backends that run there.
#ifndef LSSAR_KERNELS_HOST_BUFFER_H_
#define LSSAR_KERNELS_HOST_BUFFER_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lssar {

// Zeroed, 64-byte aligned. Large ones are mapped, so a page of memory is taken when it is first
// written, and are offered to the kernel for huge pages.
// Errors  RESOURCE_EXHAUSTED: the machine has not that much memory
absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(size_t num_bytes);

}  // namespace lssar

#endif  // LSSAR_KERNELS_HOST_BUFFER_H_
