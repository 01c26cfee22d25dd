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

// The same for what lives as long as a model. Those of a few MiB are cut from shared mappings on
// huge pages, where each alone would lie on small ones: weights of 1 to 4 MB were read at 25 GB/s
// on small pages and at 36 on huge ones. A mapping goes when the last of its buffers does.
// Threads  any
absl::StatusOr<std::unique_ptr<Buffer>> AllocateLastingBuffer(size_t num_bytes);

}  // namespace lssar

#endif  // LSSAR_KERNELS_HOST_BUFFER_H_
