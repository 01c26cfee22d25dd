#include "kernels/cuda/driver.h"

#include <cmath>

#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr int kOldestComputeCapability = 80;
constexpr int kOldestWithClusters = 90;

std::string Version(int version) { return StrCat(version / 1000, ".", version % 1000 / 10); }

// "NVIDIA H100, compute capability 9.0".
std::string NameOf(const CudaDevice& device) {
  return StrCat(device.name, ", compute capability ", device.compute_capability / 10, ".",
                device.compute_capability % 10);
}

absl::Status NoSuchDevice(CudaDriver& driver, int device_idx, int count) {
  std::string sentence = StrCat("CUDA device ", device_idx, " does not exist: this machine has ",
                                count, ", numbered from 0");
  CudaDevice first;
  if (driver.Describe(0, first) == kCudaSuccess && first.IsMigSlice()) {
    sentence += StrCat("; a process sees one MIG slice, here ", first.name,
                       ": choose it by CUDA_VISIBLE_DEVICES");
  }
  return absl::InvalidArgumentError(sentence);
}

// Whether `device` suffices for this build.
absl::Status CheckDevice(const CudaDevice& device) {
  if (device.driver_version < device.runtime_version / 1000 * 1000) {
    return absl::FailedPreconditionError(
        StrCat("the NVIDIA driver supports CUDA ", Version(device.driver_version),
               ", this build needs ", device.runtime_version / 1000, ".0 or later"));
  }
  if (device.compute_capability < kOldestComputeCapability) {
    return absl::FailedPreconditionError(
        StrCat(device.name, " has compute capability ", device.compute_capability / 10, ".",
               device.compute_capability % 10, "; this build needs 8.0 or later"));
  }
  return absl::OkStatus();
}

// The status of the first launch.
absl::Status LaunchStatus(const CudaDriver& driver, int code, const CudaDevice& device) {
  switch (code) {
    case kCudaNoKernelForDevice:
      return absl::FailedPreconditionError(
          StrCat("this build has no kernels for ", NameOf(device),
                 ": add it to LSSAR_CUDA_ARCHITECTURES and build again"));
    case kCudaJitCompilerNotFound:
    case kCudaUnsupportedPtxVersion:
    case kCudaJitCompilationDisabled:
      return absl::FailedPreconditionError(StrCat(
          "the NVIDIA driver, of CUDA ", Version(device.driver_version),
          ", does not compile this build's kernels, of CUDA ", Version(device.runtime_version),
          ", for ", NameOf(device), " (", driver.ErrorText(code),
          "): update the driver, or add the device to LSSAR_CUDA_ARCHITECTURES and build "
          "again"));
    default: return CudaStatus(driver, code, "the first kernel");
  }
}

bool IsUnplaceable(int code) {
  return code == kCudaInvalidClusterSize || code == kCudaLaunchOutOfResources ||
         code == kCudaInvalidConfiguration;
}

}  // namespace

absl::Status CudaStatus(const CudaDriver& driver, int code, const std::string& doing) {
  if (code == kCudaSuccess) return absl::OkStatus();
  const std::string sentence =
      StrCat(doing, " failed: CUDA error ", code, ", ", driver.ErrorText(code));
  switch (code) {
    case kCudaOutOfMemory: return absl::ResourceExhaustedError(sentence);
    case kCudaDriverTooOld:
    case kCudaNoDevice:
    case kCudaNoKernelForDevice: return absl::FailedPreconditionError(sentence);
    default: return absl::InternalError(sentence);
  }
}

bool IsStickyCudaError(int code) {
  switch (code) {
    case 46:   // cudaErrorDevicesUnavailable
    case 214:  // cudaErrorECCUncorrectable
    case 220:  // cudaErrorNvlinkUncorrectable
    case 226:  // cudaErrorContained
    case 700:  // cudaErrorIllegalAddress
    case 702:  // cudaErrorLaunchTimeout
    case 709:  // cudaErrorContextIsDestroyed
    case 710:  // cudaErrorAssert
    case 714:  // cudaErrorHardwareStackError
    case 715:  // cudaErrorIllegalInstruction
    case 716:  // cudaErrorMisalignedAddress
    case 717:  // cudaErrorInvalidAddressSpace
    case 718:  // cudaErrorInvalidPc
    case 719:  // cudaErrorLaunchFailure
    case 721:  // cudaErrorTensorMemoryLeak
    case 999:  // cudaErrorUnknown
      return true;
    default: return false;
  }
}

absl::StatusOr<CudaDevice> OpenCudaDevice(CudaDriver& driver, int device_idx) {
  int count = 0;
  const int counted = driver.CountDevices(count);
  if (counted == kCudaDriverTooOld) {
    return absl::FailedPreconditionError(
        StrCat("no NVIDIA driver is installed, or it is older than this build's CUDA: ",
               driver.ErrorText(counted)));
  }
  if (counted == kCudaNoDevice || (counted == kCudaSuccess && count == 0)) {
    return absl::FailedPreconditionError(
        "no CUDA device is visible to this process: CUDA_VISIBLE_DEVICES hides them, or a GPU in "
        "MIG "
        "mode has no slice");
  }
  if (counted != kCudaSuccess) return CudaStatus(driver, counted, "counting the CUDA devices");
  if (device_idx < 0 || device_idx >= count) {
    return NoSuchDevice(driver, device_idx, count);
  }
  CudaDevice device;
  RETURN_IF_ERROR(CudaStatus(driver, driver.Describe(device_idx, device),
                             StrCat("reading the properties of CUDA device ", device_idx)));
  RETURN_IF_ERROR(CheckDevice(device));
  device.has_clusters = device.compute_capability >= kOldestWithClusters &&
                        device.shared_bytes_of_block >= kClusterSharedBytes;
  RETURN_IF_ERROR(
      CudaStatus(driver, driver.Open(device_idx), StrCat("opening CUDA device ", device_idx)));
  return device;
}

absl::Status ProbeCudaDevice(CudaDriver& driver, const CudaKernels& kernels, CudaDevice* device) {
  constexpr float kWhole[kProbeValues] = {0, 1, -1, 7, -24, 30, -100, 100};
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(driver, driver.Allocate(sizeof(CudaProbed) * kProbeValues, memory),
                             "allocating device memory"));
  CudaProbeArgs args{.out = static_cast<CudaProbed*>(memory)};
  for (int i = 0; i < kProbeValues; ++i) {
    args.whole[i] = kWhole[i];
    args.power[i] = std::exp2(kWhole[i]);
  }
  CudaProbed probed[kProbeValues];
  const auto run = [&] {
    const int code = kernels.probe(args, driver.Stream());
    return code != kCudaSuccess ? code : driver.CopyOut(probed, memory, sizeof(probed));
  };
  int code = run();
  if (code == kCudaSuccess && !probed[0].has_clusters) device->has_clusters = false;
  if (code == kCudaSuccess && device->has_clusters) {
    args.cluster_blocks = kMostClusterBlocks;
    args.shared_bytes = kClusterSharedBytes;
    code = run();
    if (IsUnplaceable(code)) {
      device->has_clusters = false;
      code = kCudaSuccess;
    }
  }
  driver.Free(memory);
  RETURN_IF_ERROR(LaunchStatus(driver, code, *device));
  for (int i = 0; i < kProbeValues; ++i) {
    // Exact at 2^0 and log2(1) alone. An H200 has log2(0.5) = -0.9999999.
    const float slack = kWhole[i] == 0 ? 0.0f : kProbeSlack;
    const float power_error = std::fabs(probed[i].power / args.power[i] - 1);
    const float log_error = std::fabs(probed[i].log - kWhole[i]);
    if (power_error <= slack && log_error <= slack * std::fabs(kWhole[i])) continue;
    return absl::FailedPreconditionError(
        StrCat(device->name, " computes 2^", kWhole[i], " as ", probed[i].power, " and log2(",
               args.power[i], ") as ", probed[i].log,
               kWhole[i] == 0 ? "; the kernels need exact results there"
                              : "; the kernels need results within 2^-21"));
  }
  return absl::OkStatus();
}

}  // namespace lssar
