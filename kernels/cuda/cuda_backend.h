// The ops on a GPU, or on its emulation.
#ifndef LSSAR_KERNELS_CUDA_CUDA_BACKEND_H_
#define LSSAR_KERNELS_CUDA_CUDA_BACKEND_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/gemm_library.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/step_graphs.h"

namespace lssar {

struct CudaBackendParts {
  std::string name = "cuda";
  std::unique_ptr<CudaDriver> driver;
  CudaKernels kernels;
  // Makes the library for GEMMs of many rows, on the open device. Null: batch-invariant, our own
  // kernels run all GEMMs.
  absl::StatusOr<std::unique_ptr<GemmLibrary>> (*make_gemm_library)() = nullptr;
  std::function<void(std::string_view)> log = nullptr;  // BackendOptions::log
  size_t max_step_graphs = kMaxStepGraphs;
  size_t max_widened_bytes = kMaxWidenedBytes;
};

// Errors  those of OpenCudaDevice, ProbeCudaDevice and make_gemm_library
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(CudaBackendParts parts, int device_idx);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_BACKEND_H_
