// Rows of a packed matrix: the token embedding, out of the table that Logits multiplies by.
#ifndef LSSAR_KERNELS_CPU_EMBED_H_
#define LSSAR_KERNELS_CPU_EMBED_H_

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// Embed of ops.h. args.table is a CpuMatrix.
// Cost     one cache line per element of a row: elements of one row lie a panel's step apart
// Threads  the whole pool
void EmbedOnCpu(const EmbedArgs& args, ThreadPool& pool, Scratch& scratch);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_EMBED_H_
