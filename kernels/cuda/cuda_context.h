// What the parts of the cuda backend share: the device, its stream, and the first thing that went
// wrong on it since the last Synchronize.
#ifndef LSSAR_KERNELS_CUDA_CUDA_CONTEXT_H_
#define LSSAR_KERNELS_CUDA_CUDA_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "kernels/check.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/staging.h"

namespace lssar {

// A step whose ops run in the shape of a bucket (step_plan.h).
struct StepShape {
  int num_rows = 0;
  int padded_rows = 0;           // the bucket's
  const int32_t* ids = nullptr;  // [padded_rows] on the device, of rows that are none negative
  int num_counted_ops = 0;       // calls of Attention that counted
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
  // Copies to the device, in order; `from` may change at once. Returns a code of cudaError_t.
  int Stage(void* to, const void* from, size_t num_bytes) {
    return staging_.CopyIn(to, from, num_bytes);
  }
  // The same; false, and an error kept, where it cannot be.
  bool CopyIn(void* to, const void* from, size_t num_bytes, const char* doing) {
    return Check(Stage(to, from, num_bytes), doing);
  }
  // Waits for the stream; false: an error.
  bool Wait() {
    staging_.Reset();
    return Check(driver_->Synchronize(), "a step");
  }

  // The shape that ops run in now; null: their own.
  StepShape* Shape() const { return shape_; }
  // Rows that an op for all `num_rows` of the step runs.
  int PaddedRows(int num_rows) const {
    if (shape_ == nullptr) return num_rows;
    LSSAR_CHECK(num_rows == shape_->num_rows);
    return shape_->padded_rows;
  }
  void SetShape(StepShape* shape) { shape_ = shape; }
  void SetCapturing(bool is_capturing) { is_capturing_ = is_capturing; }

  // At least num_bytes of the workspace; null, and an error kept, where there is no memory, or
  // where it would have to grow in a capture.
  template <typename T>
  T* Reserve(Workspace& workspace, size_t num_bytes) {
    if (is_capturing_ && workspace.NumBytes() < num_bytes) {
      Keep(absl::AbortedError("a workspace is too small for the step that is captured"));
      return nullptr;
    }
    absl::StatusOr<void*> address = workspace.Reserve(num_bytes);
    if (!address.ok()) Keep(address.status());
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
