// State shared by the parts of the cuda backend: the device, its stream, and the first error since
// the last Synchronize.
#ifndef LSSAR_KERNELS_CUDA_CUDA_CONTEXT_H_
#define LSSAR_KERNELS_CUDA_CUDA_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/staging.h"

namespace lssar {

// A step whose ops run with the row count of a bucket (DecodeBucket in launch_plan.h).
struct StepShape {
  int num_rows = 0;
  int padded_rows = 0;           // of the bucket
  const int32_t* ids = nullptr;  // [padded_rows] on the device; padding rows have negative ids
  int num_counted_heads = 0;     // query heads of all calls of Attention with statistics
};

class CudaContext {
 public:
  CudaContext(std::unique_ptr<CudaDriver> driver, const CudaKernels& kernels,
              const CudaDevice& device)
      : driver_(std::move(driver)), kernels_(kernels), device_(device), staging_(*driver_) {}

  CudaDriver& Driver() { return *driver_; }
  const CudaKernels& Kernels() const { return kernels_; }
  const CudaDevice& Device() const { return device_; }
  void* Stream() const { return driver_->Stream(); }

  // False after an error. Ops then do nothing until Synchronize has returned the error.
  bool IsOk() const { return status_.ok(); }
  absl::Status TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

  // Records an error if `code` is one, and returns false.
  bool Check(int code, const char* doing) {
    if (code != kCudaSuccess) RecordError(CudaStatus(*driver_, code, doing));
    return code == kCudaSuccess;
  }
  // Keeps the first error.
  void RecordError(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  // Copies to the device in stream order; `from` may change after the call. Returns a code of
  // cudaError_t.
  int Stage(void* to, const void* from, size_t num_bytes) {
    return staging_.CopyIn(to, from, num_bytes);
  }
  // The same; records an error and returns false on failure.
  bool CopyIn(void* to, const void* from, size_t num_bytes, const char* doing) {
    return Check(Stage(to, from, num_bytes), doing);
  }
  // Synchronises the stream. False: an error.
  bool Wait() {
    staging_.Reset();
    return Check(driver_->Synchronize(), "a step");
  }

  // The shape of the bucket that ops run in; null: none.
  StepShape* Shape() const { return shape_; }
  // Rows that an op runs for the `num_rows` of the step: padded in a bucket.
  int PaddedRows(int num_rows) const {
    if (shape_ == nullptr) return num_rows;
    LSSAR_CHECK(num_rows == shape_->num_rows);
    return shape_->padded_rows;
  }
  void SetShape(StepShape* shape) { shape_ = shape; }
  void SetCapturing(bool is_capturing) { is_capturing_ = is_capturing; }

  // At least num_bytes of the workspace. Records an error and returns null if memory is exhausted
  // or the workspace would have to grow during a capture.
  template <typename T>
  T* Reserve(Workspace& workspace, size_t num_bytes) {
    if (is_capturing_ && workspace.NumBytes() < num_bytes) {
      RecordError(absl::AbortedError("a workspace is too small for the step being captured"));
      return nullptr;
    }
    absl::StatusOr<void*> address = workspace.Reserve(num_bytes);
    if (!address.ok()) RecordError(address.status());
    return address.ok() ? static_cast<T*>(*address) : nullptr;
  }

 private:
  const std::unique_ptr<CudaDriver> driver_;
  const CudaKernels kernels_;
  const CudaDevice device_;
  absl::Status status_;
  Staging staging_;
  StepShape* shape_ = nullptr;
  bool is_capturing_ = false;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_CONTEXT_H_
