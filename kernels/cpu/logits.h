// Logits of chosen rows through the tied embedding.
#ifndef LSSAR_KERNELS_CPU_LOGITS_H_
#define LSSAR_KERNELS_CPU_LOGITS_H_

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace lssar {

// Logits of ops.h: Linear over the chosen rows, so with all of its promises.
void LogitsOnCpu(const LogitsArgs& args, ThreadPool& pool, Scratch& scratch);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_LOGITS_H_
