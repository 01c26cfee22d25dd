// The kernels of one build, device or emulated, as functions that start them. Each returns a code
// of cudaError_t, 0 when it was started.
#ifndef LSSAR_KERNELS_CUDA_KERNELS_H_
#define LSSAR_KERNELS_CUDA_KERNELS_H_

#include "kernels/cuda/kernel_args.h"

namespace lssar {

// Shared memory that a block of each kind of attention launch needs, in bytes.
struct CudaAttentionMemory {
  size_t prefill = 0;
  size_t cluster_decode = 0;     // at most, over all rows that a cluster takes
  size_t split_decode_warp = 0;  // for each warp of the block
};

struct CudaKernels {
  // Rows that attend alone. Requires num_decode_rows >= 1; a dtype other than fp32.
  // One launch: a cluster of `cluster_blocks` blocks to a row and head, scores in shared memory.
  // Requires  sm_90 or the emulation; cluster_blocks 1, 2, 4 or 8; max_splits at most
  //           cluster_blocks * kSplitsOfBlock
  int (*cluster_decode)(const CudaAttentionArgs& args, DType dtype, int cluster_blocks,
                        void* stream);
  // Two launches, scores in device memory. Any row, any device. args.split_decode_warps: 1 to
  // kDecodeWarps; it moves work, not bits.
  int (*split_decode)(const CudaAttentionArgs& args, DType dtype, void* stream);
  // Rows that attend in tiles. Requires num_tiles >= 1.
  int (*prefill)(const CudaAttentionArgs& args, DType dtype, void* stream);
  int (*rope_write)(const CudaRopeWriteArgs& args, void* stream);
  // Requires num_rows >= 1 of each.
  int (*split_rows)(const CudaSplitArgs& args, void* stream);
  int (*linear)(const CudaLinearArgs& args, void* stream);
  int (*embed)(const CudaEmbedArgs& args, void* stream);
  int (*sample)(const CudaSampleArgs& args, void* stream);
  // Requires  a dtype other than fp32, IsCudaHeadDim(head_dim)
  CudaAttentionMemory (*attention_memory)(DType dtype, int head_dim);
};

// Splits whose scores a block of a cluster keeps in its shared memory.
inline constexpr int kSplitsOfBlock = 32;

// Blocks of a cluster: what every device with clusters can place.
inline constexpr int kMostClusterBlocks = 8;

// Warps of a decode block, at most: as many splits of a row at once.
inline constexpr int kDecodeWarps = 8;

// Head dimensions that the kernels are made for.
constexpr bool IsCudaHeadDim(int dim) { return dim == 32 || dim == 64 || dim == 80 || dim == 128; }

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_KERNELS_H_
