// The cuda backend on the host: the kernels' source, run thread by thread (machine.h). For tests.
#ifndef LSSAR_KERNELS_CUDA_EMULATION_EMULATED_BACKEND_H_
#define LSSAR_KERNELS_CUDA_EMULATION_EMULATED_BACKEND_H_

#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/driver.h"

namespace lssar {

// A device in the host's memory. compute_capability 90: H100; 80: A100, without clusters and with
// less shared memory; 86, 89 and 120: still less.
std::unique_ptr<CudaDriver> MakeEmulatedDriver(int compute_capability = 90);

// Driver and kernels for MakeCudaBackend, named "cuda-emulated".
CudaBackendParts EmulatedParts(int compute_capability = 90);

// has_library: GEMMs of many rows by a library, as on a GPU; without it, batch-invariant.
std::unique_ptr<Backend> MakeEmulatedBackend(int compute_capability = 90, bool has_library = false);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_EMULATION_EMULATED_BACKEND_H_
