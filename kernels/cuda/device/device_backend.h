// The cuda backend on a GPU of this machine. Only in builds with CUDA (LSSAR_WITH_CUDA).
#ifndef LSSAR_KERNELS_CUDA_DEVICE_DEVICE_BACKEND_H_
#define LSSAR_KERNELS_CUDA_DEVICE_DEVICE_BACKEND_H_

#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/driver.h"

namespace lssar {

// A newer device reports `max_compute_capability` instead of its own: 80 selects the paths for
// devices without clusters.
std::unique_ptr<CudaDriver> MakeDeviceDriver(int max_compute_capability = 1000);

// batch_invariant, log: BackendOptions
// Errors  those of MakeCudaBackend; FAILED_PRECONDITION: cuBLASLt is needed and not installed
absl::StatusOr<std::unique_ptr<Backend>> MakeDeviceBackend(
    int device_idx, bool batch_invariant, std::function<void(std::string_view)> log);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_DEVICE_DEVICE_BACKEND_H_
