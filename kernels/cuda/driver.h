// The CUDA runtime calls of the backend, besides kernel launches: memory, copies, graphs, events.
// Implemented by the CUDA runtime, by the emulation, and by tests that inject failures.
#ifndef LSSAR_KERNELS_CUDA_DRIVER_H_
#define LSSAR_KERNELS_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernels.h"

namespace lssar {

// Codes of cudaError_t that this backend handles; 0 is success.
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaInvalidConfiguration = 9;
inline constexpr int kCudaDriverTooOld = 35;
inline constexpr int kCudaNoDevice = 100;
inline constexpr int kCudaNoKernelForDevice = 209;
inline constexpr int kCudaJitCompilerNotFound = 221;
inline constexpr int kCudaUnsupportedPtxVersion = 222;
inline constexpr int kCudaJitCompilationDisabled = 223;
inline constexpr int kCudaLaunchOutOfResources = 701;
inline constexpr int kCudaCaptureUnsupported = 900;
inline constexpr int kCudaCaptureInvalidated = 901;
inline constexpr int kCudaInvalidClusterSize = 912;

struct CudaDevice {
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  int num_multiprocessors = 0;
  size_t memory_bytes = 0;
  size_t shared_bytes_of_block = 0;  // at most
  int driver_version = 0;   // CUDA version that the driver supports: 1000 * major + 10 * minor
  int runtime_version = 0;  // CUDA version of this build
  // Decode attention runs in clusters of kMostClusterBlocks blocks. Set by OpenCudaDevice, cleared
  // by ProbeCudaDevice.
  bool has_clusters = false;

  // A part of a GPU: the driver adds "MIG 1g.10gb" to the name.
  bool IsMigSlice() const { return name.find(" MIG ") != std::string::npos; }
};

// Calls return a code of cudaError_t. All work runs in order on one stream.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  virtual int CountDevices(int& count) = 0;
  // The device's properties, has_clusters excepted. Allocates nothing on it.
  virtual int Describe(int device_idx, CudaDevice& device) = 0;
  // Selects the device of all further calls and makes its stream.
  virtual int Open(int device_idx) = 0;
  virtual void* Stream() const = 0;

  virtual int Allocate(size_t num_bytes, void*& address) = 0;  // 256-byte aligned
  // Waits for work that uses the memory, then frees it.
  void Free(void* address) {
    ++num_freed_;
    Release(address);
  }
  // Number of calls of Free. A graph recorded before a Free may hold an invalid address.
  int64_t NumFreed() const { return num_freed_; }
  virtual int FreeMemory(size_t& num_bytes) = 0;
  virtual int Clear(void* address, size_t num_bytes) = 0;
  // Copies from and to any host memory. They return when the copy, and all work before it, is done:
  // a driver may read pageable memory after an asynchronous call has returned (Grace Hopper, HMM),
  // and callers free it.
  int CopyIn(void* to, const void* from_host, size_t num_bytes) {
    const int code = CopyInAsync(to, from_host, num_bytes);
    return code != kCudaSuccess ? code : Synchronize();
  }
  int CopyOut(void* to_host, const void* from, size_t num_bytes) {
    const int code = CopyOutAsync(to_host, from, num_bytes);
    return code != kCudaSuccess ? code : Synchronize();
  }
  // Copies rows of bytes inside the device, `stride_bytes` apart in source and target; in order
  // with the kernels.
  struct CopyShape {
    size_t num_rows = 1;
    size_t row_bytes = 0;
    size_t stride_bytes = 0;  // at least row_bytes; ignored for one row
  };
  virtual int CopyInside(void* to, const void* from, const CopyShape& shape) = 0;
  virtual int Synchronize() = 0;

  // Pinned host memory. The two asynchronous copies below return at once with it, and run in order
  // with the kernels. Host memory of any kind must not change until Synchronize.
  virtual int AllocateHost(size_t num_bytes, void*& address) = 0;  // 64-byte aligned
  virtual void FreeHost(void* address) = 0;
  virtual int CopyInAsync(void* to, const void* from_host, size_t num_bytes) = 0;
  virtual int CopyOutAsync(void* to_host, const void* from, size_t num_bytes) = 0;

  // Between BeginCapture and EndCapture, kernels, Clear, CopyInside and the two copies above do not
  // run: they are recorded with their arguments and addresses. Each LaunchGraph runs them in order.
  // Calls that allocate, free, wait or copy otherwise are errors and invalidate the capture:
  // EndCapture then returns an error and no graph, and the stream is as before.
  virtual int BeginCapture() = 0;
  virtual int EndCapture(void*& graph) = 0;
  virtual int LaunchGraph(void* graph) = 0;
  virtual void DestroyGraph(void* graph) = 0;  // after the device has finished with it

  // MarkTime records event `mark`, 0 or 1, on the stream. ElapsedMs waits for both events and
  // returns the time between them.
  virtual int MarkTime(int mark) = 0;
  virtual int ElapsedMs(float& elapsed_ms) = 0;

  virtual std::string ErrorText(int code) const = 0;

 private:
  virtual void Release(void* address) = 0;  // Free

  int64_t num_freed_ = 0;
};

// The status of a failed call. `doing`: what the call was for ("copying to the device").
//   out of memory           RESOURCE_EXHAUSTED
//   no device, driver too old, no kernel for the device   FAILED_PRECONDITION
//   anything else           INTERNAL
absl::Status CudaStatus(const CudaDriver& driver, int code, const std::string& doing);

// Whether the device returns `code` to every call from now on: illegal address, failed kernel,
// memory error.
bool IsStickyCudaError(int code);

// Opens device `device_idx`, if its properties fit.
// Errors  FAILED_PRECONDITION: no driver or device, a driver too old for this build, a device older
//         than sm_80; INVALID_ARGUMENT: no device of that index
absl::StatusOr<CudaDevice> OpenCudaDevice(CudaDriver& driver, int device_idx);

// Runs a first kernel (probe.cu) on the open device, and checks its results; then in a cluster with
// the most shared memory. Where the device does not place that (a small MIG slice), or this build's
// code for it has no clusters, device->has_clusters becomes false.
// Errors  FAILED_PRECONDITION: this build has no code for the device, or PTX that its driver does
//         not compile; its ex2 or lg2 is not exact at whole numbers
absl::Status ProbeCudaDevice(CudaDriver& driver, const CudaKernels& kernels, CudaDevice* device);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_DRIVER_H_
