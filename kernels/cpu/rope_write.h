// RopeWrite of the CPU backend.
#ifndef LSSAR_KERNELS_CPU_ROPE_WRITE_H_
#define LSSAR_KERNELS_CPU_ROPE_WRITE_H_

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// RopeWrite of ops.h. Rotates and normalises in double, in which the square of a float neither
// overflows nor underflows.
// Threads   the whole pool; the per-thread areas of `scratch`
void RopeWriteOnCpu(const RopeWriteArgs& args, ThreadPool& pool, Scratch& scratch);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_ROPE_WRITE_H_
