// The V rows that attention read: counted on the device, told at Synchronize.
#ifndef LSSAR_KERNELS_CUDA_ATTENTION_STATS_H_
#define LSSAR_KERNELS_CUDA_ATTENTION_STATS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_context.h"
#include "kernels/ops.h"

namespace lssar {

class AttentionStatsBuffer {
 public:
  explicit AttentionStatsBuffer(CudaContext& context)
      : context_(context), memory_(context.Driver()), on_host_(context.Driver()) {}

  // Whether nobody else's are being counted.
  bool AreFreeFor(const AttentionStats* counters, size_t num_sequences) const {
    return counters_ == nullptr ||
           (counters_ == counters && num_value_rows_.size() == num_sequences);
  }
  // Counts for these until Give; false: an error.
  // Requires  AreFreeFor them
  bool Begin(AttentionStats* counters, size_t num_sequences);
  // The device's counts, [num_sequences].
  unsigned long long* OnDevice() const {
    return static_cast<unsigned long long*>(memory_.Address());
  }
  // What `num_ops` calls of Attention had to look at.
  void AddRows(const RaggedBatch& rows, int num_heads, int num_ops);

  // Asks for the device's counts, in order; Give adds them to the caller's, once they are there,
  // and forgets where those are.
  void Fetch();
  void Give();

 private:
  CudaContext& context_;
  Workspace memory_;
  PinnedMemory on_host_;
  AttentionStats* counters_ = nullptr;   // whose counts are on the device
  std::vector<int64_t> num_value_rows_;  // of each sequence
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_ATTENTION_STATS_H_
