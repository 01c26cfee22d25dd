// Device memory, pinned host memory and weight matrices of the cuda backend.
#ifndef LSSAR_KERNELS_CUDA_DEVICE_MEMORY_H_
#define LSSAR_KERNELS_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernel_args.h"

namespace lssar {

// Allocates zeroed device memory.
// Requires  `driver` outlives the buffer
// Errors    RESOURCE_EXHAUSTED: the device has less memory free
absl::StatusOr<std::unique_ptr<Buffer>> AllocateOnDevice(CudaDriver& driver, size_t num_bytes);

// Device memory that grows, at least twofold, to the largest size reserved so far. What it has
// outgrown is kept, at most as much again: graphs hold its address.
class Workspace {
 public:
  explicit Workspace(CudaDriver& driver) : driver_(driver) {}

  // At least num_bytes. Zeroed after growth, unchanged otherwise.
  absl::StatusOr<void*> Reserve(size_t num_bytes);
  void* Address() const { return buffers_.empty() ? nullptr : buffers_.back()->Address(); }
  size_t NumBytes() const { return buffers_.empty() ? 0 : buffers_.back()->NumBytes(); }

 private:
  CudaDriver& driver_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // the last one is in use
};

// The same in pinned host memory. Growth loses its contents and does not zero.
class PinnedMemory {
 public:
  explicit PinnedMemory(CudaDriver& driver) : driver_(driver) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Requires  no copy from or to it is in flight
  absl::StatusOr<void*> Reserve(size_t num_bytes);
  void* Address() const { return address_; }
  size_t NumBytes() const { return num_bytes_; }

 private:
  CudaDriver& driver_;
  void* address_ = nullptr;
  size_t num_bytes_ = 0;
};

class DeviceMatrix final : public PackedMatrix {
 public:
  DeviceMatrix(const CudaMatrix& matrix, std::unique_ptr<Buffer> elements,
               std::unique_ptr<Buffer> scales)
      : matrix_(matrix), elements_(std::move(elements)), scales_(std::move(scales)) {}

  int NumRows() const override { return matrix_.num_rows; }
  int NumCols() const override { return matrix_.num_cols; }
  DType StoredType() const override { return matrix_.dtype; }
  size_t NumBytes() const override {
    return elements_->NumBytes() + (scales_ == nullptr ? 0 : scales_->NumBytes());
  }
  const CudaMatrix& View() const { return matrix_; }

 private:
  CudaMatrix matrix_;
  std::unique_ptr<Buffer> elements_, scales_;
};

// Errors  those of Backend::Pack
absl::StatusOr<std::unique_ptr<PackedMatrix>> PackOnDevice(CudaDriver& driver,
                                                           const MatrixView& view, DType stored);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_DEVICE_MEMORY_H_
