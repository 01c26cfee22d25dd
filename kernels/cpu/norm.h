// The norm of one row of x, which the GEMM applies before it packs the row.
#ifndef LSSAR_KERNELS_CPU_NORM_H_
#define LSSAR_KERNELS_CPU_NORM_H_

#include "kernels/ops.h"

namespace lssar {

// out = norm(x), in double, rounded once.
// Shapes    x, out [hidden_size]; out may be x
// Requires  norm.weight is not null
// Ensures   the same bits on every instruction set: sums have 16 interleaved parts
// Cost      0.25 us for a hidden_size of 768
void NormRow(const float* x, int hidden_size, const NormView& norm, float* out);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_NORM_H_
