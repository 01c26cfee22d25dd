// RopeWrite and Attention of the cuda backend.
#ifndef LSSAR_KERNELS_CUDA_CUDA_ATTENTION_H_
#define LSSAR_KERNELS_CUDA_CUDA_ATTENTION_H_

#include "kernels/cuda/attention_stats.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/device_tables.h"
#include "kernels/ops.h"

namespace lssar {

class CudaAttention {
 public:
  CudaAttention(CudaContext& context, DeviceTables& tables, AttentionStatsBuffer& stats,
                bool is_batch_invariant)
      : context_(context),
        is_batch_invariant_(is_batch_invariant),
        tables_(tables),
        stats_(stats),
        scratch_memory_(context.Driver()),
        arrivals_memory_(context.Driver()) {}

  void RopeWrite(const RopeWriteArgs& args);
  // Requires  statistics that can count for args.counters
  void Attention(const AttentionArgs& args);

 private:
  // False: an error.
  bool BeginCounting(const AttentionArgs& args);
  // Reserves the scratch of split decode. False: an error.
  bool ReserveScratch(int num_heads, int head_dim);

  CudaContext& context_;
  const bool is_batch_invariant_;
  DeviceTables& tables_;
  AttentionStatsBuffer& stats_;
  Workspace scratch_memory_, arrivals_memory_;
  CudaScratch scratch_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_ATTENTION_H_
