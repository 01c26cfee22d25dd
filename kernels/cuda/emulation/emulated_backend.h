// The cuda backend on the host: its kernels' own source, thread by thread (machine.h). For tests.
#ifndef LSSAR_KERNELS_CUDA_EMULATION_EMULATED_BACKEND_H_
#define LSSAR_KERNELS_CUDA_EMULATION_EMULATED_BACKEND_H_

#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/driver.h"

namespace lssar {

// A device of the host's memory. compute_capability 80: one without clusters.
std::unique_ptr<CudaDriver> MakeEmulatedDriver(int compute_capability = 90);

// Driver and kernels for MakeCudaBackend, named "cuda-emulated".
CudaBackendParts EmulatedParts(int compute_capability = 90);

std::unique_ptr<Backend> MakeEmulatedBackend(int compute_capability = 90, bool fast_gemm = false);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_EMULATION_EMULATED_BACKEND_H_
