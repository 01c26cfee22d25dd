// RopeWrite and Attention of the cuda backend.
#ifndef LSSAR_KERNELS_CUDA_CUDA_ATTENTION_H_
#define LSSAR_KERNELS_CUDA_CUDA_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/step_tables.h"
#include "kernels/ops.h"

namespace lssar {

// The V rows that attention read, counted on the device until somebody wants to know.
class ReadCounts {
 public:
  explicit ReadCounts(CudaContext& context) : context_(context), memory_(context.Driver()) {}

  // Whether these are what is counted now, or nothing is.
  bool CanAdd(const AttentionArgs& args) const;
  // One op more that counts; false: an error.
  bool Add(const AttentionArgs& args);
  unsigned long long* OnDevice() const {
    return static_cast<unsigned long long*>(memory_.Address());
  }
  // Adds the counts to the caller's, and forgets where those are.
  // Requires  the ops that count are done
  void Give();

 private:
  CudaContext& context_;
  Workspace memory_;
  AttentionCounters* counters_ = nullptr;  // whose counts are on the device
  std::vector<int64_t> num_value_rows_;    // of each sequence
  std::vector<int64_t> num_read_;
};

class CudaAttention {
 public:
  explicit CudaAttention(CudaContext& context)
      : context_(context),
        tables_(context),
        counts_(context),
        scratch_memory_(context.Driver()),
        arrivals_memory_(context.Driver()) {}

  void RopeWrite(const RopeWriteArgs& args);
  void Attention(const AttentionArgs& args);
  ReadCounts& Counts() { return counts_; }

 private:
  // Of the batches without clusters. False: an error.
  bool ReserveScratch(int num_heads, int head_dim);

  CudaContext& context_;
  StepTables tables_;
  ReadCounts counts_;
  Workspace scratch_memory_, arrivals_memory_;
  CudaScratch scratch_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_ATTENTION_H_
