// Selects the kernel that is compiled for an element type and a head dimension.
#ifndef LSSAR_KERNELS_CUDA_ATTENTION_DISPATCH_CUH_
#define LSSAR_KERNELS_CUDA_ATTENTION_DISPATCH_CUH_

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/dtype.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

template <typename E, typename F>
int WithDim(int head_dim, const F& f) {
  switch (head_dim) {
    case 32: return f.template operator()<E, 32>();
    case 64: return f.template operator()<E, 64>();
    case 80: return f.template operator()<E, 80>();
    case 128: return f.template operator()<E, 128>();
    default: return kInvalidValue;
  }
}

// f<Element, kDim>(), a template of a lambda.
template <typename F>
int WithElementAndDim(DType dtype, int head_dim, const F& f) {
  switch (dtype) {
    case DType::kF16: return WithDim<F16Element>(head_dim, f);
    case DType::kI8: return WithDim<I8Element>(head_dim, f);
    case DType::kFx16: return WithDim<Fx16Element>(head_dim, f);
    default: return kInvalidValue;
  }
}

// Bytes of shared memory, as f<Element, kDim>() gives them.
template <typename F>
size_t MemoryOf(DType dtype, int head_dim, const F& f) {
  size_t num_bytes = 0;
  WithElementAndDim(dtype, head_dim, [&]<typename E, int kDim>() {
    num_bytes = f.template operator()<E, kDim>();
    return 0;
  });
  return num_bytes;
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_ATTENTION_DISPATCH_CUH_
