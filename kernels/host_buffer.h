// Buffers in host memory.
#ifndef LSSAR_KERNELS_HOST_BUFFER_H_
#define LSSAR_KERNELS_HOST_BUFFER_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lssar {

// A zeroed, 64-byte aligned buffer. Large buffers are memory mappings with a hint for huge pages:
// the kernel allocates a page when it is first written.
// Errors  RESOURCE_EXHAUSTED: the machine has not enough memory
absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(size_t num_bytes);

// The same for buffers with the lifetime of a model. Buffers of a few MiB are sub-allocated from
// shared mappings on huge pages: weights of 1 to 4 MB are read at 36 GB/s there, at 25 on small
// pages. A mapping is freed with the last of its buffers.
// Threads  any
absl::StatusOr<std::unique_ptr<Buffer>> AllocateLastingBuffer(size_t num_bytes);

}  // namespace lssar

#endif  // LSSAR_KERNELS_HOST_BUFFER_H_
