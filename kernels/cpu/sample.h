// Ids of rows of logits, drawn or given, with their log-probabilities.
#ifndef LSSAR_KERNELS_CPU_SAMPLE_H_
#define LSSAR_KERNELS_CPU_SAMPLE_H_

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// Sample of ops.h; `out` is complete when it returns.
// Ensures  the same bits for any batch, thread count and instruction set
// Cost     two passes over a row for greedy or a target (a part of the second); with a
//          log-probability one more; for a draw ten more at most
// Threads  the whole pool, a row each
void SampleOnCpu(const SampleArgs& args, ThreadPool& pool, Scratch& scratch);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_SAMPLE_H_
