#include "kernels/cuda/emulation/emulated_backend.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/emulation/emulated_gemm.h"
#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/emulation/stream.h"
#include "kernels/cuda/kernel_table.cuh"

namespace lssar {
namespace {

// Shared memory of a block, at most (CUDA C++ Programming Guide, technical specifications per
// compute capability).
size_t SharedBytesOf(int compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87: return size_t{163} * 1024;
    case 86:
    case 89:
    case 120: return size_t{99} * 1024;
    default: return emulation::kMaxSharedBytes;
  }
}

class EmulatedDriver final : public CudaDriver {
 public:
  explicit EmulatedDriver(int compute_capability)
      : compute_capability_(compute_capability),
        stream_(std::make_unique<emulation::LazyStream>(SharedBytesOf(compute_capability))) {}

  int CountDevices(int& count) override {
    count = 1;
    return kCudaSuccess;
  }
  int Describe(int, CudaDevice& device) override {
    device = {.name = "emulated",
              .compute_capability = compute_capability_,
              .num_multiprocessors = 4,  // few, so that small batches fill the device
              .memory_bytes = kMemoryBytes,
              .shared_bytes_of_block = stream_->MaxSharedBytes(),
              .driver_version = 13000,
              .runtime_version = 13000};
    return kCudaSuccess;
  }
  int Open(int) override { return kCudaSuccess; }
  void* Stream() const override { return static_cast<emulation::Stream*>(stream_.get()); }

  // Exactly num_bytes, so that a sanitizer detects a kernel that reads past the end.
  int Allocate(size_t num_bytes, void*& address) override {
    if (!stream_->Drain()) return kCudaCaptureUnsupported;
    if (num_bytes > kMemoryBytes) return kCudaOutOfMemory;
    if (posix_memalign(&address, 256, num_bytes) != 0) return kCudaOutOfMemory;
    taken_bytes_ += malloc_usable_size(address);
    return kCudaSuccess;
  }
  int FreeMemory(size_t& num_bytes) override {
    num_bytes = kMemoryBytes - taken_bytes_;
    return kCudaSuccess;
  }
  int Clear(void* address, size_t num_bytes) override {
    return stream_->Submit([=] { std::memset(address, 0, num_bytes); });
  }
  int CopyInside(void* to, const void* from, const CopyShape& shape) override {
    for (size_t row = 0; row < shape.num_rows; ++row) {
      const size_t at = row * shape.stride_bytes;
      const int code = CopyInOrder(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                                   shape.row_bytes);
      if (code != kCudaSuccess) return code;
    }
    return kCudaSuccess;
  }
  int Synchronize() override { return stream_->Drain() ? kCudaSuccess : kCudaCaptureUnsupported; }

  int AllocateHost(size_t num_bytes, void*& address) override {
    return Allocate(num_bytes, address);
  }
  void FreeHost(void* address) override { Release(address); }
  int CopyInAsync(void* to, const void* from_host, size_t num_bytes) override {
    return CopyInOrder(to, from_host, num_bytes);
  }
  int CopyOutAsync(void* to_host, const void* from, size_t num_bytes) override {
    return CopyInOrder(to_host, from, num_bytes);
  }

  int BeginCapture() override {
    return stream_->BeginCapture() ? kCudaSuccess : kCudaCaptureUnsupported;
  }
  int EndCapture(void*& graph) override {
    auto recorded = std::make_unique<emulation::Graph>();
    if (!stream_->EndCapture(*recorded)) return kCudaCaptureInvalidated;
    graph = recorded.release();
    return kCudaSuccess;
  }
  int LaunchGraph(void* graph) override {
    return stream_->Submit([recorded = static_cast<emulation::Graph*>(graph)] {
      for (const std::function<void()>& work : *recorded) work();
    });
  }
  void DestroyGraph(void* graph) override {
    stream_->Drain();
    delete static_cast<emulation::Graph*>(graph);
  }

  int MarkTime(int) override { return kCudaSuccess; }
  int ElapsedMs(float& elapsed_ms) override {
    elapsed_ms = 0;
    return kCudaSuccess;
  }
  std::string ErrorText(int code) const override {
    return "emulated error " + std::to_string(code);
  }

 private:
  static constexpr size_t kMemoryBytes = size_t{1} << 34;

  void Release(void* address) override {
    stream_->Drain();
    taken_bytes_ -= malloc_usable_size(address);
    std::free(address);
  }
  int CopyInOrder(void* to, const void* from, size_t num_bytes) {
    return stream_->Submit([=] { std::memcpy(to, from, num_bytes); });
  }

  const int compute_capability_;
  std::atomic<size_t> taken_bytes_ = 0;  // pinned host memory included
  const std::unique_ptr<emulation::LazyStream> stream_;
};

}  // namespace

std::unique_ptr<CudaDriver> MakeEmulatedDriver(int compute_capability) {
  return std::make_unique<EmulatedDriver>(compute_capability);
}

CudaBackendParts EmulatedParts(int compute_capability) {
  return {.name = "cuda-emulated",
          .driver = MakeEmulatedDriver(compute_capability),
          .kernels = cuda_emulated::KernelTable()};
}

std::unique_ptr<Backend> MakeEmulatedBackend(int compute_capability, bool has_library) {
  CudaBackendParts parts = EmulatedParts(compute_capability);
  if (has_library) parts.make_gemm_library = &MakeEmulatedGemm;
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeCudaBackend(std::move(parts), 0);
  LSSAR_CHECK(backend.ok());
  return *std::move(backend);
}

}  // namespace lssar
