#include "kernels/cpu/logits.h"

#include "kernels/cpu/linear.h"

namespace lssar {

void LogitsOnCpu(const LogitsArgs& args, ThreadPool& pool, Scratch& scratch) {
  GatheredLinearOnCpu({.num_rows = static_cast<int>(args.row_ids.size()),
                       .x = args.x,
                       .norm = args.norm,
                       .weight = args.weight,
                       .out = args.logits},
                      args.row_ids, pool, scratch);
}

}  // namespace lssar
