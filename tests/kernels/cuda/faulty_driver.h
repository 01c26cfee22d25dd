// A driver whose calls and kernels fail as a test requests, and which tracks unreleased memory.
#ifndef LSSAR_TESTS_KERNELS_CUDA_FAULTY_DRIVER_H_
#define LSSAR_TESTS_KERNELS_CUDA_FAULTY_DRIVER_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/emulation/emulated_backend.h"
#include "kernels/cuda/emulation/emulated_gemm.h"
#include "kernels/cuda/emulation/stream.h"

namespace lssar {

enum class DriverCall {
  kAny,
  kCountDevices,
  kDescribe,
  kOpen,
  kAllocate,
  kAllocateHost,
  kClear,
  kCopyInside,
  kSynchronize,
  kCopyInAsync,
  kCopyOutAsync,
  kBeginCapture,
  kEndCapture,
  kLaunchGraph,
  kLaunchKernel,
};

// The failures to inject, and what was called. Outlives its FaultyDriver.
struct DriverScript {
  DriverCall failing = DriverCall::kAny;  // calls of this kind
  int num_good = -1;                      // calls that succeed before the failure; -1: all
  int code = 0;                           // returned by the failing call
  bool is_sticky = false;                 // and by every later call of any kind
  bool is_lasting = false;                // and by every later call of its kind

  int num_devices = 1;
  int compute_capability = 90;
  int driver_version = 13000;
  std::string device_name = "emulated";
  size_t free_bytes = 12345;
  size_t max_step_graphs = 0;  // 0: the default
  bool has_gemm_library = false;

  int num_calls = 0;         // of the failing kind
  bool is_optional = false;  // the backend can run without the failed call
  bool is_capturing = false;
  int stuck_code = 0;  // of the sticky error that happened
  int opened_device = -1;
  std::set<void*> alive;  // allocations and graphs

  // The code that a call of this kind returns; 0: forward the call.
  int Next(DriverCall call) {
    if (stuck_code != 0) return stuck_code;
    if (failing != DriverCall::kAny && failing != call) return 0;
    const int idx = num_calls++;
    if (num_good < 0 || idx < num_good || (idx > num_good && !is_lasting)) return 0;
    is_optional = is_capturing || call == DriverCall::kAllocateHost ||
                  call == DriverCall::kBeginCapture || call == DriverCall::kEndCapture;
    if (is_sticky) stuck_code = code;
    return code;
  }
  // Sets the failure and resets counts and sticky errors.
  void Fail(DriverCall kind, int with_code, int after_good = 0) {
    failing = kind;
    num_good = after_good;
    code = with_code;
    num_calls = stuck_code = 0;
  }
  void Mend() { num_good = -1, stuck_code = 0; }
};

class FaultyDriver final : public CudaDriver {
 public:
  explicit FaultyDriver(std::shared_ptr<DriverScript> script)
      : script_(std::move(script)),
        driver_(MakeEmulatedDriver(script_->compute_capability)),
        stream_(*script_, *static_cast<emulation::Stream*>(driver_->Stream())) {}

  int CountDevices(int& count) override {
    count = script_->num_devices;
    return script_->Next(DriverCall::kCountDevices);
  }
  int Describe(int device_idx, CudaDevice& device) override {
    const int code =
        Call(DriverCall::kDescribe, [&] { return driver_->Describe(device_idx, device); });
    device.driver_version = script_->driver_version;
    device.name = script_->device_name;
    return code;
  }
  int Open(int device_idx) override {
    script_->opened_device = device_idx;
    return Call(DriverCall::kOpen, [&] { return driver_->Open(device_idx); });
  }
  void* Stream() const override {
    return static_cast<emulation::Stream*>(const_cast<FaultyStream*>(&stream_));
  }
  int Allocate(size_t num_bytes, void*& address) override {
    return Keep(DriverCall::kAllocate, address,
                [&](void*& made) { return driver_->Allocate(num_bytes, made); });
  }
  int FreeMemory(size_t& num_bytes) override {
    num_bytes = script_->free_bytes;
    return kCudaSuccess;
  }
  int Clear(void* address, size_t num_bytes) override {
    return Call(DriverCall::kClear, [&] { return driver_->Clear(address, num_bytes); });
  }
  int CopyInside(void* to, const void* from, const CopyShape& shape) override {
    return Call(DriverCall::kCopyInside, [&] { return driver_->CopyInside(to, from, shape); });
  }
  int Synchronize() override {
    return Call(DriverCall::kSynchronize, [&] { return driver_->Synchronize(); });
  }
  int AllocateHost(size_t num_bytes, void*& address) override {
    return Keep(DriverCall::kAllocateHost, address,
                [&](void*& made) { return driver_->AllocateHost(num_bytes, made); });
  }
  void FreeHost(void* address) override {
    LSSAR_CHECK(script_->alive.erase(address) == 1);
    driver_->FreeHost(address);
  }
  int CopyInAsync(void* to, const void* from, size_t num_bytes) override {
    return Call(DriverCall::kCopyInAsync,
                [&] { return driver_->CopyInAsync(to, from, num_bytes); });
  }
  int CopyOutAsync(void* to, const void* from, size_t num_bytes) override {
    return Call(DriverCall::kCopyOutAsync,
                [&] { return driver_->CopyOutAsync(to, from, num_bytes); });
  }
  int BeginCapture() override {
    const int code = Call(DriverCall::kBeginCapture, [&] { return driver_->BeginCapture(); });
    script_->is_capturing = code == kCudaSuccess;
    return code;
  }
  int EndCapture(void*& graph) override {
    const int code = Keep(DriverCall::kEndCapture, graph,
                          [&](void*& made) { return driver_->EndCapture(made); });
    script_->is_capturing = false;
    if (code == kCudaSuccess) return code;
    // The capture ends even if no graph is returned.
    void* lost = nullptr;
    if (driver_->EndCapture(lost) == kCudaSuccess) driver_->DestroyGraph(lost);
    return code;
  }
  int LaunchGraph(void* graph) override {
    return Call(DriverCall::kLaunchGraph, [&] { return driver_->LaunchGraph(graph); });
  }
  void DestroyGraph(void* graph) override {
    LSSAR_CHECK(script_->alive.erase(graph) == 1);
    driver_->DestroyGraph(graph);
  }
  int MarkTime(int) override { return kCudaSuccess; }
  int ElapsedMs(float&) override { return kCudaSuccess; }
  std::string ErrorText(int code) const override { return "text of " + std::to_string(code); }

 private:
  class FaultyStream final : public emulation::Stream {
   public:
    FaultyStream(DriverScript& script, emulation::Stream& stream)
        : script_(script), stream_(stream) {}
    int Submit(std::function<void()> work) override {
      const int failed = script_.Next(DriverCall::kLaunchKernel);
      return failed != 0 ? failed : stream_.Submit(std::move(work));
    }

   private:
    DriverScript& script_;
    emulation::Stream& stream_;
  };

  void Release(void* address) override {
    LSSAR_CHECK(script_->alive.erase(address) == 1);
    driver_->Free(address);
  }
  template <typename Make>
  int Call(DriverCall kind, const Make& make) {
    const int failed = script_->Next(kind);
    return failed != 0 ? failed : make();
  }
  template <typename Make>
  int Keep(DriverCall kind, void*& address, const Make& make) {
    const int code = Call(kind, [&] { return make(address); });
    if (code == kCudaSuccess) script_->alive.insert(address);
    return code;
  }

  const std::shared_ptr<DriverScript> script_;
  const std::unique_ptr<CudaDriver> driver_;
  FaultyStream stream_;
};

inline absl::StatusOr<std::unique_ptr<Backend>> MakeFaulty(
    const std::shared_ptr<DriverScript>& script, int device_idx = 0) {
  CudaBackendParts parts = EmulatedParts();
  parts.driver = std::make_unique<FaultyDriver>(script);
  if (script->has_gemm_library) parts.make_gemm_library = &MakeEmulatedGemm;
  if (script->max_step_graphs > 0) parts.max_step_graphs = script->max_step_graphs;
  return MakeCudaBackend(std::move(parts), device_idx);
}

}  // namespace lssar

#endif  // LSSAR_TESTS_KERNELS_CUDA_FAULTY_DRIVER_H_
