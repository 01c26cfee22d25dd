// What a GEMM does with a sum before it is stored.
#ifndef LSSAR_KERNELS_CUDA_GEMM_EPILOGUE_CUH_
#define LSSAR_KERNELS_CUDA_GEMM_EPILOGUE_CUH_

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernel_args.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

LSSAR_DEVICE float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kGeluTanh:
      return 0.5f * x * (1 + tanhf(0.7978845608f * MulAdd(0.044715f * x * x, x, x)));
    case Activation::kGeluErf: return 0.5f * x * erfcf(-0.70710678f * x);
    case Activation::kRelu: return x < 0 ? 0.0f : x;  // NaN stays NaN
    case Activation::kRelu2: return x < 0 ? 0.0f : x * x;
    case Activation::kSilu: return x / (1 + expf(-x));
  }
  return x;
}

// One element of the result.
class OutputElement {
 public:
  // What no kernel writes: may be called before WaitForPreviousKernel.
  LSSAR_DEVICE void LoadConstants(const CudaLinearArgs& args, int col) {
    if (args.bias != nullptr) bias_ = args.bias[col];
  }
  LSSAR_DEVICE void Load(const CudaLinearArgs& args, int row, int col) {
    at_ = size_t(row) * size_t(args.weight.num_rows) + size_t(col);
    if (args.multiply != nullptr) multiply_ = args.multiply[at_];
    if (args.residual != nullptr) residual_ = args.residual[at_];
  }
  LSSAR_DEVICE void Store(const CudaLinearArgs& args, float sum) const {
    if (args.bias != nullptr) sum += bias_;
    sum = Activate(args.activation, sum);
    if (args.multiply != nullptr) sum *= multiply_;
    sum *= args.scale;
    if (args.residual != nullptr) sum += residual_;
    if (args.softcap > 0) sum = args.softcap * tanhf(sum / args.softcap);
    args.out[at_] = sum;
  }

 private:
  size_t at_ = 0;
  float bias_ = 0, multiply_ = 1, residual_ = 0;
};

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_GEMM_EPILOGUE_CUH_
