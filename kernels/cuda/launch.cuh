// Launches a kernel whose argument is one struct.
#ifndef LSSAR_KERNELS_CUDA_LAUNCH_CUH_
#define LSSAR_KERNELS_CUDA_LAUNCH_CUH_

#include <cstdlib>
#include <string_view>

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch_shape.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

inline constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue

#ifdef __CUDACC__
// Whether kernels may be launched before the previous one has ended: devices from sm_90 on do it,
// and `function` is compiled for them, so that it waits for the previous kernel's results (code for
// sm_80, which the driver translates for a newer device, does not). All kernels are compiled alike,
// and a process uses devices of one kind, or none of them overlaps: the first call decides.
// LSSAR_CUDA_OVERLAP=0 in the environment turns it off, to compare bits and times.
inline bool CanOverlap(const void* function) {
  static const bool can_overlap = [function] {
    const char* const setting = std::getenv("LSSAR_CUDA_OVERLAP");
    if (setting != nullptr && std::string_view(setting) == "0") return false;
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, function) != cudaSuccess || attributes.ptxVersion < 90) {
      return false;
    }
    int device = 0, major = 0, count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return false;
    for (device = 0; device < count; ++device) {
      if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) !=
              cudaSuccess ||
          major < 9) {
        return false;
      }
    }
    return true;
  }();
  return can_overlap;
}

// Allows `function` all the shared memory that the current device gives a block. The attribute is
// one for all backends on a device: were it the size of one launch, another backend's could lower
// it before that launch.
inline cudaError_t AllowSharedMemory(const void* function) {
  int device = 0, most = 0;
  cudaFuncAttributes attributes;
  cudaError_t code = cudaGetDevice(&device);
  if (code == cudaSuccess) {
    code = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (code == cudaSuccess) code = cudaFuncGetAttributes(&attributes, function);
  if (code != cudaSuccess) return code;
  return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              most - int(attributes.sharedSizeBytes));
}
#endif

// Returns a code of cudaError_t. `stream`: of Driver::Stream().
template <typename Args>
int Launch(const LaunchShape& shape, void* stream, void (*kernel)(Args), const Args& args) {
#ifdef __CUDACC__
  const void* function = reinterpret_cast<const void*>(kernel);
  if (shape.shared_bytes > size_t{48} * 1024) {
    const cudaError_t allowed = AllowSharedMemory(function);
    if (allowed != cudaSuccess) return int(allowed);
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (shape.cluster_blocks > 1) {
    cudaLaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = unsigned(shape.cluster_blocks);
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
  if (shape.overlaps_previous && CanOverlap(function)) {
    cudaLaunchAttribute& overlap = attributes[num_attributes++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(shape.num_blocks_x), unsigned(shape.num_blocks_y));
  config.blockDim = dim3(unsigned(shape.num_threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  Args copy = args;
  void* arguments[] = {&copy};
  const cudaError_t launched = cudaLaunchKernelExC(&config, function, arguments);
  if (launched != cudaSuccess) cudaGetLastError();  // or a later call would report it
  return int(launched);
#else
  auto* const emulated = static_cast<emulation::Stream*>(stream);
  if (!emulation::ShapeFits(shape, emulated->MaxSharedBytes())) return kInvalidValue;
  return emulated->Submit([shape, kernel, args] {
    const void* const function = reinterpret_cast<const void*>(kernel);
    if (emulation::RunByRunner(function, shape, &args, sizeof(args))) return;
    emulation::Run(shape, [&] { kernel(args); });
  });
#endif
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_LAUNCH_CUH_
