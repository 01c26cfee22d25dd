#include "kernels/cuda/device/device_kernels.h"

#include "kernels/cuda/kernel_table.cuh"

namespace lssar {

CudaKernels DeviceKernels() { return cuda::KernelTable(); }

}  // namespace lssar
