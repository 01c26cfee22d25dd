// The kernels compiled by nvcc, for files that another compiler compiles.
#ifndef LSSAR_KERNELS_CUDA_DEVICE_DEVICE_KERNELS_H_
#define LSSAR_KERNELS_CUDA_DEVICE_DEVICE_KERNELS_H_

#include "kernels/cuda/kernels.h"

namespace lssar {

CudaKernels DeviceKernels();

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_DEVICE_DEVICE_KERNELS_H_
