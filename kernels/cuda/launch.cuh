// Launches a kernel whose argument is one struct.
#ifndef LSSAR_KERNELS_CUDA_LAUNCH_CUH_
#define LSSAR_KERNELS_CUDA_LAUNCH_CUH_

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch_shape.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

inline constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue

// Returns a code of cudaError_t. `stream`: of Driver::Stream().
template <typename Args>
int Launch(const LaunchShape& shape, void* stream, void (*kernel)(Args), const Args& args) {
#ifdef __CUDACC__
  const void* function = reinterpret_cast<const void*>(kernel);
  if (shape.shared_bytes > size_t{48} * 1024) {
    const cudaError_t raised = cudaFuncSetAttribute(
        function, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared_bytes));
    if (raised != cudaSuccess) return int(raised);
  }
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = unsigned(shape.cluster_blocks);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(shape.num_blocks_x), unsigned(shape.num_blocks_y));
  config.blockDim = dim3(unsigned(shape.num_threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = shape.cluster_blocks > 1 ? 1 : 0;
  Args copy = args;
  void* arguments[] = {&copy};
  return int(cudaLaunchKernelExC(&config, function, arguments));
#else
  auto* const emulated = static_cast<emulation::Stream*>(stream);
  if (!emulation::ShapeFits(shape, emulated->MaxSharedBytes())) return kInvalidValue;
  return emulated->Submit([shape, kernel, args] { emulation::Run(shape, [&] { kernel(args); }); });
#endif
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_LAUNCH_CUH_
