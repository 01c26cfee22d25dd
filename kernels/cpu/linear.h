// The GEMM of the CPU backend and the ops that read its packed weights: Linear, Logits, Embed.
#ifndef LSSAR_KERNELS_CPU_LINEAR_H_
#define LSSAR_KERNELS_CPU_LINEAR_H_

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// Linear of ops.h. args.weight is a CpuMatrix.
// Ensures   each sum is one fused multiply-add chain over k = 0..K-1, then bias, activation,
//           multiply, scale, residual: the same bits for any M, thread count and instruction set
// Cost      reads the weights once per 192 rows; x once per panel, from cache
// Threads   the whole pool; the shared and the per-thread areas of `scratch`
void LinearOnCpu(const LinearArgs& args, ThreadPool& pool, Scratch& scratch);

// Logits of ops.h: the same GEMM over the rows x[row_ids[0]], x[row_ids[1]], ...
void LogitsOnCpu(const LogitsArgs& args, ThreadPool& pool, Scratch& scratch);

// Embed of ops.h. args.table is a CpuMatrix.
// Cost     CpuMatrix::WidenRow
// Threads  the whole pool
void EmbedOnCpu(const EmbedArgs& args, ThreadPool& pool);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_LINEAR_H_
