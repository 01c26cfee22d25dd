// Attention statistics of a step: V rows read, counted on the device and published at Synchronize.
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

  // False while another caller's statistics are being counted.
  bool CanCountFor(const AttentionStats* counters, size_t num_sequences) const {
    return counters_ == nullptr ||
           (counters_ == counters && num_value_rows_.size() == num_sequences);
  }
  // Counts into `counters` until Publish. False: an error.
  // Requires  CanCountFor(counters, num_sequences)
  bool Begin(AttentionStats* counters, size_t num_sequences);
  // The device's counts, [num_sequences].
  unsigned long long* OnDevice() const {
    return static_cast<unsigned long long*>(memory_.Address());
  }
  // Adds the V rows in reach of `num_ops` calls of Attention.
  void AddRows(const RaggedBatch& rows, int num_heads);

  // Fetch starts the copy of the device's counts. Publish adds them to the caller's.
  // Requires  of Publish: the stream was synchronised after Fetch
  void Fetch();
  void Publish();

 private:
  CudaContext& context_;
  Workspace memory_;
  PinnedMemory on_host_;
  AttentionStats* counters_ = nullptr;   // the caller's; null: none are being counted
  std::vector<int64_t> num_value_rows_;  // of each sequence
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_ATTENTION_STATS_H_
