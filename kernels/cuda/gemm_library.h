// GEMMs of many rows by a library, which chooses its own order of addition.
#ifndef LSSAR_KERNELS_CUDA_GEMM_LIBRARY_H_
#define LSSAR_KERNELS_CUDA_GEMM_LIBRARY_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "kernels/cuda/kernel_args.h"

namespace lssar {

// out = activation(x W^T + bias) + residual, summed and added in fp32.
struct LibraryGemmArgs {
  const void* x = nullptr;  // [num_rows, weight.padded_cols] of weight.dtype
  int num_rows = 0;
  CudaMatrix weight;                // fp32, fp16 or bf16
  const float* bias = nullptr;      // [weight.num_rows] or null
  const float* residual = nullptr;  // [num_rows, weight.num_rows] or null; may be `out`
  bool gelu = false;
  float* out = nullptr;
  int out_stride = 0;  // from one row of `out` and `residual` to the next; >= weight.num_rows
  void* workspace = nullptr;  // kGemmWorkspaceBytes
};

inline constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20;

class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;

  // Whether the library can run this GEMM. Allowed during a capture.
  virtual bool Supports(const LibraryGemmArgs& args) = 0;
  // "cuBLASLt algorithm 66, tile 20, stages 24": what runs this GEMM.
  // Requires  Supports(args)
  virtual std::string Describe(const LibraryGemmArgs& args) = 0;
  // `stream`: of CudaDriver::Stream(). Can be captured.
  // Requires  Supports(args)
  // Errors  RESOURCE_EXHAUSTED: memory; INTERNAL: anything else, with the library's name for it
  virtual absl::Status Run(const LibraryGemmArgs& args, void* stream) = 0;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_GEMM_LIBRARY_H_
