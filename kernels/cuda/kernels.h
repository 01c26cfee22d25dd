// Functions that launch the kernels, of the device or of the emulation. Each returns a code of
// cudaError_t; 0: launched.
#ifndef LSSAR_KERNELS_CUDA_KERNELS_H_
#define LSSAR_KERNELS_CUDA_KERNELS_H_

#include "kernels/cuda/kernel_args.h"

namespace lssar {

// Shared memory that a block of each kind of attention launch needs, in bytes.
struct CudaAttentionMemory {
  size_t prefill = 0;
  size_t wide_prefill = 0;       // a block of kWideTileRows rows
  size_t cluster_decode = 0;     // at most, over all rows that a cluster takes
  size_t split_decode_warp = 0;  // for each warp of the block
};

struct CudaKernels {
  // Decode attention. Requires num_decode_rows >= 1; a dtype other than fp32. One launch: a cluster
  // of `cluster_blocks` blocks for each row and head, scores in shared memory.
  // Requires  sm_90 or the emulation; cluster_blocks 1, 2, 4 or 8; max_splits at most
  //           cluster_blocks * kSplitsOfBlock / heads_of_block
  int (*cluster_decode)(const CudaAttentionArgs& args, DType dtype, int cluster_blocks,
                        void* stream);
  // Two launches, three over fx16, scores in device memory. Any row, any device.
  // args.split_decode_warps: 1 to kDecodeWarps; it moves work, not bits.
  int (*split_decode)(const CudaAttentionArgs& args, DType dtype, void* stream);
  // Prefill attention. Requires num_tiles >= 1.
  int (*prefill)(const CudaAttentionArgs& args, DType dtype, void* stream);
  int (*rope_write)(const CudaRopeWriteArgs& args, void* stream);
  // Each requires num_rows >= 1.
  int (*split_rows)(const CudaSplitArgs& args, void* stream);
  int (*linear)(const CudaLinearArgs& args, void* stream);
  // split_rows and linear in one launch; the same bits.
  // Requires  weights other than fp32; num_rows <= kMaxFusedRows; FusesWidth
  int (*fused_linear)(const CudaFusedLinearArgs& args, void* stream);
  int (*epilogue)(const CudaEpilogueArgs& args, void* stream);
  int (*widen)(const CudaWidenArgs& args, void* stream);
  int (*norm)(const CudaNormArgs& args, void* stream);
  int (*embed)(const CudaEmbedArgs& args, void* stream);
  int (*sample)(const CudaSampleArgs& args, void* stream);
  int (*probe)(const CudaProbeArgs& args, void* stream);
  // Requires  a dtype other than fp32, IsCudaHeadDim(head_dim)
  CudaAttentionMemory (*attention_memory)(DType dtype, int head_dim);
};

// Widths whose rows fit in the 48 KiB of shared memory that a launch has without asking for more.
constexpr bool FusesWidth(int num_rows, int padded_width) {
  return size_t(num_rows) * size_t(padded_width) * sizeof(float) <= size_t{40} * 1024;
}

// Splits whose scores a block of a cluster keeps in its shared memory.
inline constexpr int kSplitsOfBlock = 32;

// Blocks of a cluster, at most: every device with clusters can place so many.
inline constexpr int kMostClusterBlocks = 8;

// Shared memory of a block of cluster decode, at most: what sm_90 has. Devices with less run split
// decode (sm_120).
inline constexpr size_t kClusterSharedBytes = size_t{227} * 1024;

// Warps of a decode block, at most; each computes one split at a time. A block of several query
// heads has at most kGroupedDecodeWarps.
inline constexpr int kDecodeWarps = 8;
inline constexpr int kGroupedDecodeWarps = 4;

// Query heads that a decode block computes, at most: rows of an MMA. In a cluster, a block has at
// most kSplitsOfBlock pairs of split and head.
inline constexpr int kMaxHeadsOfBlock = 8;

// Shared memory for the weights of a split in one head. A warp of split decode needs it for each
// head; CudaAttentionMemory::split_decode_warp has it once.
inline constexpr size_t kHeadWeightBytes = kCudaSplitKeys * 2;

// Head dimensions that the kernels are compiled for.
constexpr bool IsCudaHeadDim(int dim) { return dim == 32 || dim == 64 || dim == 80 || dim == 128; }

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_KERNELS_H_
