// What the parts of the cuda backend share: the device, its stream, and the first thing that went
// wrong on it since the last Synchronize.
#ifndef LSSAR_KERNELS_CUDA_CUDA_CONTEXT_H_
#define LSSAR_KERNELS_CUDA_CUDA_CONTEXT_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernels.h"

namespace lssar {

class CudaContext {
 public:
  CudaContext(std::unique_ptr<CudaDriver> driver, const CudaKernels& kernels,
              const CudaDevice& device)
      : driver_(std::move(driver)), kernels_(kernels), device_(device) {}

  CudaDriver& Driver() { return *driver_; }
  const CudaKernels& Kernels() const { return kernels_; }
  const CudaDevice& Device() const { return device_; }
  void* Stream() const { return driver_->Stream(); }

  // False after an error: ops then do nothing, until Synchronize has told of it.
  bool IsGood() const { return status_.ok(); }
  absl::Status TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

  // Remembers the first thing that went wrong; false where `code` is one.
  bool Check(int code, const char* doing) {
    if (code != kCudaSuccess) Keep(CudaStatus(*driver_, code, doing));
    return code == kCudaSuccess;
  }
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  // At least num_bytes of the workspace; null, and an error kept, where there is no memory.
  template <typename T>
  T* Reserve(Workspace& workspace, size_t num_bytes) {
    absl::StatusOr<void*> address = workspace.Reserve(num_bytes);
    if (!address.ok()) Keep(address.status());
    return address.ok() ? static_cast<T*>(*address) : nullptr;
  }

 private:
  const std::unique_ptr<CudaDriver> driver_;
  const CudaKernels kernels_;
  const CudaDevice device_;
  absl::Status status_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_CONTEXT_H_
