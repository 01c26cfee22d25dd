// Norms of rows: on their own, and those that the GEMM and RopeWrite apply to what they read.
#ifndef LSSAR_KERNELS_CPU_NORM_H_
#define LSSAR_KERNELS_CPU_NORM_H_

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// out = norm(x), in double, rounded once.
// Shapes    x, out [size]; out may be x
// Requires  norm.kind is not kNone
// Ensures   the same bits on every instruction set: sums have 16 interleaved parts
// Cost      0.25 us for a size of 768
void NormRow(const float* x, int size, const NormView& norm, float* out);

// Norm of ops.h.
// Ensures  those of NormRow; then one rounding of the product by scale and one of the sum
// Threads  the whole pool; the per-thread areas of `scratch`
void NormOnCpu(const NormArgs& args, ThreadPool& pool, Scratch& scratch);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_NORM_H_
