// Products of many rows by a library's hands, as an option: its order of addition is its own.
#ifndef LSSAR_KERNELS_CUDA_MATRIX_PRODUCTS_H_
#define LSSAR_KERNELS_CUDA_MATRIX_PRODUCTS_H_

#include <cstddef>

#include "kernels/cuda/kernel_args.h"

namespace lssar {

// out = activation(x W^T + bias) + residual, summed and added in fp32.
struct MatrixProductArgs {
  const void* x = nullptr;  // [num_rows, weight.padded_cols] of weight.dtype
  int num_rows = 0;
  CudaMatrix weight;                // fp16 or bf16
  const float* bias = nullptr;      // [weight.num_rows] or null
  const float* residual = nullptr;  // [num_rows, weight.num_rows] or null; may be `out`
  bool gelu = false;
  float* out = nullptr;
  void* workspace = nullptr;  // kProductWorkspaceBytes
};

inline constexpr size_t kProductWorkspaceBytes = size_t{32} << 20;

class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;

  // Whether it takes products of this kind: the others are for our own kernels.
  virtual bool Takes(const MatrixProductArgs& args) = 0;
  // Returns a code of cudaError_t. `stream`: of CudaDriver::Stream().
  // Requires  Takes(args)
  virtual int Multiply(const MatrixProductArgs& args, void* stream) = 0;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_MATRIX_PRODUCTS_H_
