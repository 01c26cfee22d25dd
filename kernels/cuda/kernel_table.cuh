// The functions of CudaKernels, defined in the .cu files.
#ifndef LSSAR_KERNELS_CUDA_KERNEL_TABLE_CUH_
#define LSSAR_KERNELS_CUDA_KERNEL_TABLE_CUH_

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernels.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {

int StartClusterDecode(const CudaAttentionArgs& args, DType dtype, int cluster_blocks,
                       void* stream);
int StartSplitDecode(const CudaAttentionArgs& args, DType dtype, void* stream);
size_t ClusterDecodeMemory(DType dtype, int head_dim);
size_t SplitDecodeWarpMemory(DType dtype, int head_dim);
size_t PrefillMemory(DType dtype, int head_dim, bool is_wide);
int StartPrefill(const CudaAttentionArgs& args, DType dtype, void* stream);
int StartRopeWrite(const CudaRopeWriteArgs& args, void* stream);
int StartSplitRows(const CudaSplitArgs& args, void* stream);
int StartLinear(const CudaLinearArgs& args, void* stream);
int StartFusedLinear(const CudaFusedLinearArgs& args, void* stream);
int StartEpilogue(const CudaEpilogueArgs& args, void* stream);
int StartWiden(const CudaWidenArgs& args, void* stream);
int StartNorm(const CudaNormArgs& args, void* stream);
int StartEmbed(const CudaEmbedArgs& args, void* stream);
int StartSample(const CudaSampleArgs& args, void* stream);
int StartProbe(const CudaProbeArgs& args, void* stream);

inline CudaAttentionMemory AttentionMemory(DType dtype, int head_dim) {
  return {.prefill = PrefillMemory(dtype, head_dim, false),
          .wide_prefill = PrefillMemory(dtype, head_dim, true),
          .cluster_decode = ClusterDecodeMemory(dtype, head_dim),
          .split_decode_warp = SplitDecodeWarpMemory(dtype, head_dim)};
}

inline CudaKernels KernelTable() {
  return {.cluster_decode = &StartClusterDecode,
          .split_decode = &StartSplitDecode,
          .prefill = &StartPrefill,
          .rope_write = &StartRopeWrite,
          .split_rows = &StartSplitRows,
          .linear = &StartLinear,
          .fused_linear = &StartFusedLinear,
          .epilogue = &StartEpilogue,
          .widen = &StartWiden,
          .norm = &StartNorm,
          .embed = &StartEmbed,
          .sample = &StartSample,
          .probe = &StartProbe,
          .attention_memory = &AttentionMemory};
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_KERNEL_TABLE_CUH_
