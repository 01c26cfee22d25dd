#include "kernels/cuda/device/device_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/cublas_gemm.h"
#include "kernels/cuda/device/device_kernels.h"

namespace lssar {
namespace {

// Limit of cudaMemcpy2D on every device (cudaDeviceProp::memPitch).
constexpr size_t kMaxPitchBytes = 0x7FFFFFFF;

// The CUDA runtime on one stream.
class DeviceDriver final : public CudaDriver {
 public:
  explicit DeviceDriver(int max_compute_capability)
      : max_compute_capability_(max_compute_capability) {}
  ~DeviceDriver() override {
    if (device_idx_ < 0) return;
    UseDevice();
    for (cudaEvent_t mark : marks_) {
      if (mark != nullptr) cudaEventDestroy(mark);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  int CountDevices(int& count) override { return Code(cudaGetDeviceCount(&count)); }

  int Describe(int device_idx, CudaDevice& device) override {
    cudaDeviceProp properties;
    cudaError_t code = cudaGetDeviceProperties(&properties, device_idx);
    if (code == cudaSuccess) code = cudaDriverGetVersion(&device.driver_version);
    if (code == cudaSuccess) code = cudaRuntimeGetVersion(&device.runtime_version);
    if (code != cudaSuccess) return Code(code);
    device.name = properties.name;
    device.compute_capability =
        std::min(10 * properties.major + properties.minor, max_compute_capability_);
    device.num_multiprocessors = properties.multiProcessorCount;
    device.memory_bytes = properties.totalGlobalMem;
    device.shared_bytes_of_block = properties.sharedMemPerBlockOptin;
    return kCudaSuccess;
  }
  int Open(int device_idx) override {
    cudaError_t code = cudaSetDevice(device_idx);
    if (code == cudaSuccess) device_idx_ = device_idx;
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    for (cudaEvent_t& mark : marks_) {
      if (code == cudaSuccess) code = cudaEventCreate(&mark);
    }
    return Code(code);
  }
  void* Stream() const override { return OwnStream(); }

  int Allocate(size_t num_bytes, void*& address) override {
    UseDevice();
    const cudaError_t code = cudaMalloc(&address, num_bytes);
    if (code != cudaSuccess) cudaGetLastError();  // or the next launch would report it
    return Code(code);
  }
  int FreeMemory(size_t& num_bytes) override {
    UseDevice();
    size_t total_bytes = 0;
    return Code(cudaMemGetInfo(&num_bytes, &total_bytes));
  }
  int Clear(void* address, size_t num_bytes) override {
    return Code(cudaMemsetAsync(address, 0, num_bytes, OwnStream()));
  }
  int CopyInside(void* to, const void* from, const CopyShape& shape) override {
    if (shape.num_rows == 1) {
      return Code(
          cudaMemcpyAsync(to, from, shape.row_bytes, cudaMemcpyDeviceToDevice, OwnStream()));
    }
    if (shape.stride_bytes <= kMaxPitchBytes) {
      return Code(cudaMemcpy2DAsync(to, shape.stride_bytes, from, shape.stride_bytes,
                                    shape.row_bytes, shape.num_rows, cudaMemcpyDeviceToDevice,
                                    OwnStream()));
    }
    for (size_t row = 0; row < shape.num_rows; ++row) {
      const size_t at = row * shape.stride_bytes;
      const int code =
          Code(cudaMemcpyAsync(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                               shape.row_bytes, cudaMemcpyDeviceToDevice, OwnStream()));
      if (code != kCudaSuccess) return code;
    }
    return kCudaSuccess;
  }
  int Synchronize() override { return Code(cudaStreamSynchronize(OwnStream())); }

  int AllocateHost(size_t num_bytes, void*& address) override {
    UseDevice();
    const cudaError_t code = cudaMallocHost(&address, num_bytes);
    if (code != cudaSuccess) cudaGetLastError();
    return Code(code);
  }
  void FreeHost(void* address) override {
    UseDevice();
    cudaFreeHost(address);
  }
  int CopyInAsync(void* to, const void* from_host, size_t num_bytes) override {
    return Code(cudaMemcpyAsync(to, from_host, num_bytes, cudaMemcpyHostToDevice, OwnStream()));
  }
  int CopyOutAsync(void* to_host, const void* from, size_t num_bytes) override {
    return Code(cudaMemcpyAsync(to_host, from, num_bytes, cudaMemcpyDeviceToHost, OwnStream()));
  }

  int BeginCapture() override {
    // Thread-local, because other threads of the process may allocate during the capture.
    return Code(cudaStreamBeginCapture(OwnStream(), cudaStreamCaptureModeThreadLocal));
  }
  int EndCapture(void*& graph) override {
    cudaGraph_t recorded = nullptr;
    cudaError_t code = cudaStreamEndCapture(OwnStream(), &recorded);
    cudaGraphExec_t runnable = nullptr;
    if (code == cudaSuccess) code = cudaGraphInstantiate(&runnable, recorded, 0);
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    if (code != cudaSuccess) cudaGetLastError();
    graph = runnable;
    return Code(code);
  }
  int LaunchGraph(void* graph) override {
    return Code(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), OwnStream()));
  }
  void DestroyGraph(void* graph) override {
    UseDevice();
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
  }

  int MarkTime(int mark) override { return Code(cudaEventRecord(marks_[mark], OwnStream())); }
  int ElapsedMs(float& elapsed_ms) override {
    UseDevice();
    const cudaError_t code = cudaEventSynchronize(marks_[1]);
    if (code != cudaSuccess) return Code(code);
    return Code(cudaEventElapsedTime(&elapsed_ms, marks_[0], marks_[1]));
  }

  std::string ErrorText(int code) const override {
    return cudaGetErrorString(static_cast<cudaError_t>(code));
  }

 private:
  void Release(void* address) override {
    UseDevice();
    cudaFree(address);
  }
  static int Code(cudaError_t code) { return int(code); }

  // Each thread has a current device, GPU 0 at first, on which a call may create a context. Every
  // call of this class starts here, whichever thread makes it.
  void UseDevice() const { cudaSetDevice(device_idx_); }
  cudaStream_t OwnStream() const {
    UseDevice();
    return stream_;
  }

  const int max_compute_capability_;
  int device_idx_ = -1;  // not open
  cudaStream_t stream_ = nullptr;
  cudaEvent_t marks_[2] = {};
};

}  // namespace

std::unique_ptr<CudaDriver> MakeDeviceDriver(int max_compute_capability) {
  return std::make_unique<DeviceDriver>(max_compute_capability);
}

absl::StatusOr<std::unique_ptr<Backend>> MakeDeviceBackend(
    int device_idx, bool batch_invariant, std::function<void(std::string_view)> log) {
  return MakeCudaBackend({.name = "cuda:" + std::to_string(device_idx),
                          .driver = MakeDeviceDriver(),
                          .kernels = DeviceKernels(),
                          .make_gemm_library = batch_invariant ? nullptr : &MakeCublasGemm,
                          .log = std::move(log)},
                         device_idx);
}

}  // namespace lssar
