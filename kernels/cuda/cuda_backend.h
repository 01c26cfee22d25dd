// The ops on a GPU, or on its emulation.
#ifndef LSSAR_KERNELS_CUDA_CUDA_BACKEND_H_
#define LSSAR_KERNELS_CUDA_CUDA_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matrix_products.h"

namespace lssar {

struct CudaBackendParts {
  std::string name = "cuda";
  std::unique_ptr<CudaDriver> driver;
  CudaKernels kernels;
  // Makes what does products of many rows, on the open device; null: our own kernels do.
  absl::StatusOr<std::unique_ptr<MatrixProducts>> (*make_products)() = nullptr;
};

// Errors  those of OpenCudaDevice and of make_products
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(CudaBackendParts parts, int device_idx);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_BACKEND_H_
