// Log-probabilities of a target and of the best ids of each row of logits.
#ifndef LSSAR_KERNELS_CPU_TOP_LOGPROBS_H_
#define LSSAR_KERNELS_CPU_TOP_LOGPROBS_H_

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// TopLogprobs of ops.h.
// Ensures  the same bits for any batch, thread count and instruction set
// Cost     two passes over a row, and blocks again that hold one of the best
// Threads  the whole pool, a row each
void TopLogprobsOnCpu(const TopLogprobsArgs& args, ThreadPool& pool, Scratch& scratch);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_TOP_LOGPROBS_H_
