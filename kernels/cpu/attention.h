// Attention of the CPU backend.
#ifndef LSSAR_KERNELS_CPU_ATTENTION_H_
#define LSSAR_KERNELS_CPU_ATTENTION_H_

#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// Attention of ops.h.
// Ensures   the same bits for any thread count, chunking of a prompt, batch and page size, if
//           values are finite: a weight that is zero in one row and not in its neighbour is
//           multiplied, not skipped
// Cost      cpu/BENCHMARKS.md; no allocation once `plan` and `scratch` have grown
// Threads   the whole pool; the shared and the per-thread areas of `scratch`
void AttentionOnCpu(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                    AttentionPlan* plan);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_ATTENTION_H_
