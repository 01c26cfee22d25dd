// GEMM by cuBLASLt.
#ifndef LSSAR_KERNELS_CUDA_DEVICE_CUBLAS_GEMM_H_
#define LSSAR_KERNELS_CUDA_DEVICE_CUBLAS_GEMM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm_library.h"

namespace lssar {

// Requires  the device is open
// Errors    FAILED_PRECONDITION: the library is not installed or does not start
absl::StatusOr<std::unique_ptr<GemmLibrary>> MakeCublasGemm();

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_DEVICE_CUBLAS_GEMM_H_
