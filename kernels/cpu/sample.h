// Sample of the CPU backend.
#ifndef LSSAR_KERNELS_CPU_SAMPLE_H_
#define LSSAR_KERNELS_CPU_SAMPLE_H_

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// Sample of ops.h. `out` is complete when it returns.
// Ensures  the same bits for any batch, thread count and instruction set
// Cost     reads a row twice for greedy or a target (the second time in part), once more for a
//          log-probability, and at most ten times more for a draw
// Threads  the whole pool, one row per task
void SampleOnCpu(const SampleArgs& args, ThreadPool& pool, Scratch& scratch);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_SAMPLE_H_
