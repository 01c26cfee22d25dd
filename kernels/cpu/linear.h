// The matrix product of the CPU backend: one kernel for every number of rows.
#ifndef LSSAR_KERNELS_CPU_LINEAR_H_
#define LSSAR_KERNELS_CPU_LINEAR_H_

#include <cstdint>
#include <span>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// Linear of ops.h. args.weight is a CpuMatrix.
// Ensures   each sum is one fused multiply-add chain over k = 0..in-1, then bias, activation,
//           residual: the same bits for any num_rows, thread count and instruction set
// Cost      the weights once per 192 rows; x once per panel, from cache
// Threads   the whole pool; the shared and the per-thread areas of `scratch`
void LinearOnCpu(const LinearArgs& args, ThreadPool& pool, Scratch& scratch);

// Linear over the rows x[row_ids[0]], x[row_ids[1]], ...
// Requires  row_ids.size() == args.num_rows
void GatheredLinearOnCpu(const LinearArgs& args, std::span<const int32_t> row_ids, ThreadPool& pool,
                         Scratch& scratch);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_LINEAR_H_
