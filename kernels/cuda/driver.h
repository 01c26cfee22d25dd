// What the backend asks of a GPU besides kernels: memory, copies, time. The CUDA runtime is behind
// it, the emulation, or a test that lets calls fail.
#ifndef LSSAR_KERNELS_CUDA_DRIVER_H_
#define LSSAR_KERNELS_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar {

// Codes of cudaError_t that mean something to us; 0 is success.
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaDriverTooOld = 35;
inline constexpr int kCudaNoDevice = 100;
inline constexpr int kCudaInvalidDevice = 101;
inline constexpr int kCudaNoKernelForDevice = 209;
inline constexpr int kCudaLaunchFailure = 719;
inline constexpr int kCudaCaptureUnsupported = 900;
inline constexpr int kCudaCaptureInvalidated = 901;

struct CudaDevice {
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  int num_multiprocessors = 0;
  size_t memory_bytes = 0;
  size_t shared_bytes_of_block = 0;  // at most
  int driver_version = 0;            // 1000 * major + 10 * minor: of the CUDA that it supports
  int runtime_version = 0;           // of the CUDA that this build is made with
  bool HasClusters() const { return compute_capability >= 90; }
};

// Calls give a code of cudaError_t. Everything runs in order on one stream.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  virtual int CountDevices(int& count) = 0;
  // The device of all further calls; makes its stream.
  virtual int Open(int device_idx, CudaDevice& device) = 0;
  virtual void* Stream() const = 0;

  virtual int Allocate(size_t num_bytes, void*& address) = 0;  // 256-byte aligned
  // Once the device is done with it.
  void Free(void* address) {
    ++num_freed_;
    Release(address);
  }
  // How often memory was freed: a graph recorded before that may hold an address that is none now.
  int64_t NumFreed() const { return num_freed_; }
  virtual int FreeMemory(size_t& num_bytes) = 0;
  virtual int Clear(void* address, size_t num_bytes) = 0;
  // The host's memory may change when it returns; the copy itself runs in order with the kernels.
  virtual int CopyIn(void* to, const void* from_host, size_t num_bytes) = 0;
  // Returns when the copy, and so all before it, is done.
  virtual int CopyOut(void* to_host, const void* from, size_t num_bytes) = 0;
  // Rows of bytes inside the device, `stride_bytes` apart in both places; in order with the
  // kernels.
  struct CopyShape {
    size_t num_rows = 1;
    size_t row_bytes = 0;
    size_t stride_bytes = 0;  // at least row_bytes; of no account for one row
  };
  virtual int CopyInside(void* to, const void* from, const CopyShape& shape) = 0;
  virtual int Synchronize() = 0;

  // Pinned memory of the host: what the two copies below take. They return at once and run in order
  // with the kernels; the host's bytes are theirs until Synchronize.
  virtual int AllocateHost(size_t num_bytes, void*& address) = 0;  // 64-byte aligned
  virtual void FreeHost(void* address) = 0;
  virtual int CopyInLater(void* to, const void* from_pinned, size_t num_bytes) = 0;
  virtual int CopyOutLater(void* to_pinned, const void* from, size_t num_bytes) = 0;

  // From BeginCapture to EndCapture kernels, Clear, CopyInside and the two copies above do not run:
  // they are recorded, arguments and addresses as they are. LaunchGraph runs them all, in order, as
  // often as it is called. In between, calls that allocate, free, wait or copy otherwise are errors
  // that break the capture: EndCapture then gives a code and no graph, and the stream is as before.
  virtual int BeginCapture() = 0;
  virtual int EndCapture(void*& graph) = 0;
  virtual int LaunchGraph(void* graph) = 0;
  virtual void DestroyGraph(void* graph) = 0;  // once the device is done with it

  // Marks this moment of the stream as `mark`, 0 or 1; the time from mark 0 to mark 1 once both
  // have passed.
  virtual int MarkTime(int mark) = 0;
  virtual int ElapsedMs(float& elapsed_ms) = 0;

  virtual std::string ErrorText(int code) const = 0;

 private:
  virtual void Release(void* address) = 0;  // Free

  int64_t num_freed_ = 0;
};

// A sentence for a call that failed, `doing` what ("copying to the device").
//   out of memory           RESOURCE_EXHAUSTED
//   no device, driver too old, no kernel for the device   FAILED_PRECONDITION
//   anything else           INTERNAL
absl::Status CudaStatus(const CudaDriver& driver, int code, const std::string& doing);

// Whether `code` is one that the device gives to every call from then on: an address that is none,
// a kernel that failed, memory that broke.
bool IsStickyCudaError(int code);

// Opens device `device_idx`.
// Errors  FAILED_PRECONDITION: no driver or device, a driver too old for this build, a device older
//         than sm_80; INVALID_ARGUMENT: no device of that index
absl::StatusOr<CudaDevice> OpenCudaDevice(CudaDriver& driver, int device_idx);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_DRIVER_H_
