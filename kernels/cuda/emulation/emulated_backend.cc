#include "kernels/cuda/emulation/emulated_backend.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/check.h"
#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/kernel_table.cuh"

namespace lssar {
namespace {

class EmulatedDriver final : public CudaDriver {
 public:
  explicit EmulatedDriver(int compute_capability) : compute_capability_(compute_capability) {}

  int CountDevices(int& count) override {
    count = 1;
    return kCudaSuccess;
  }
  int Open(int, CudaDevice& device) override {
    device = {.name = "emulated",
              .compute_capability = compute_capability_,
              .num_multiprocessors = 4,  // few: then small batches fill it, as large ones do a GPU
              .memory_bytes = size_t{1} << 34,
              .shared_bytes_of_block = emulation::kMaxSharedBytes,
              .driver_version = 13000,
              .runtime_version = 13000};
    return kCudaSuccess;
  }
  void* Stream() const override { return nullptr; }

  // Exactly as large as asked for, so that a sanitizer sees a kernel that reads past the end.
  int Allocate(size_t num_bytes, void*& address) override {
    if (num_bytes > size_t{1} << 34) return kCudaOutOfMemory;
    return posix_memalign(&address, 256, num_bytes) == 0 ? kCudaSuccess : kCudaOutOfMemory;
  }
  void Free(void* address) override { std::free(address); }
  int FreeMemory(size_t& num_bytes) override {
    num_bytes = size_t{1} << 34;
    return kCudaSuccess;
  }
  int Clear(void* address, size_t num_bytes) override {
    std::memset(address, 0, num_bytes);
    return kCudaSuccess;
  }
  int CopyIn(void* to, const void* from_host, size_t num_bytes) override {
    std::memcpy(to, from_host, num_bytes);
    return kCudaSuccess;
  }
  int CopyOut(void* to_host, const void* from, size_t num_bytes) override {
    std::memcpy(to_host, from, num_bytes);
    return kCudaSuccess;
  }
  int CopyInside(void* to, const void* from, size_t num_bytes) override {
    std::memcpy(to, from, num_bytes);
    return kCudaSuccess;
  }
  int Synchronize() override { return kCudaSuccess; }
  int MarkTime(int) override { return kCudaSuccess; }
  int ElapsedMs(float& elapsed_ms) override {
    elapsed_ms = 0;
    return kCudaSuccess;
  }
  std::string ErrorText(int code) const override {
    return "emulated error " + std::to_string(code);
  }

 private:
  int compute_capability_;
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

std::unique_ptr<Backend> MakeEmulatedBackend(int compute_capability) {
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      MakeCudaBackend(EmulatedParts(compute_capability), 0);
  LSSAR_CHECK(backend.ok());
  return *std::move(backend);
}

}  // namespace lssar
