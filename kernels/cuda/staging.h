// Small asynchronous copies to the device.
#ifndef LSSAR_KERNELS_CUDA_STAGING_H_
#define LSSAR_KERNELS_CUDA_STAGING_H_

#include <cstddef>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/driver.h"

namespace lssar {

// Pinned memory that stages the bytes of a step's copies until Reset. A copy from pageable memory
// would make the host wait for the stream.
class Staging {
 public:
  explicit Staging(CudaDriver& driver) : driver_(driver), memory_(driver) {}

  // Copies in order with the kernels; `from` may change after the call. If the staging memory is
  // full, copies directly. Returns a code of cudaError_t.
  int CopyIn(void* to, const void* from, size_t num_bytes);

  // Requires  the stream is synchronised before the next CopyIn
  void Reset() { num_used_ = 0; }

 private:
  // A step of 64 rows with 64K keys each, its angles, and as much again.
  static constexpr size_t kNumBytes = size_t{2} << 20;

  CudaDriver& driver_;
  PinnedMemory memory_;
  size_t num_used_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_STAGING_H_
