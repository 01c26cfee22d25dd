// Attention statistics of a step: V rows read and flat rows, counted on the device and published at
// Synchronize.
#ifndef LSSAR_KERNELS_CUDA_ATTENTION_STATS_H_
#define LSSAR_KERNELS_CUDA_ATTENTION_STATS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/launch_plan.h"
#include "kernels/ops.h"

namespace lssar {

class AttentionStatsBuffer {
 public:
  explicit AttentionStatsBuffer(CudaContext& context)
      : context_(context),
        of_few_(context.Driver()),
        of_many_(context.Driver()),
        on_host_(context.Driver()) {}

  // False while another caller's statistics are being counted.
  bool CanCountFor(const AttentionStats* counters, size_t num_sequences) const {
    return counters_ == nullptr ||
           (counters_ == counters && num_value_rows_.size() == num_sequences);
  }
  // Counts into `counters` until Publish. False: an error.
  // Requires  CanCountFor(counters, num_sequences)
  bool Begin(AttentionStats* counters, size_t num_sequences);
  // The device's counts, [num_sequences] each.
  unsigned long long* RowsRead() const {
    return static_cast<unsigned long long*>((IsOfMany() ? of_many_ : of_few_).Address());
  }
  unsigned long long* FlatRows() const { return RowsRead() + Stride(num_value_rows_.size()); }
  // Adds the V rows in reach of `num_ops` calls of Attention.
  void AddRows(const RaggedBatch& rows, int num_heads);

  // Fetch starts the copy of the device's counts. Publish adds them to the caller's.
  // Requires  of Publish: the stream was synchronised after Fetch
  void Fetch();
  void Publish();

 private:
  // Steps that graphs run have few sequences: graphs hold the addresses of their counters, which
  // a step of more sequences must not move.
  bool IsOfMany() const { return num_value_rows_.size() > size_t{kMaxBucketRows}; }
  // From the first counter of a kind to that of the next.
  static size_t Stride(size_t num_sequences) {
    return std::max(num_sequences, size_t{kMaxBucketRows});
  }
  size_t NumBytes() const {
    const size_t num_sequences = num_value_rows_.size();
    return (Stride(num_sequences) + num_sequences) * sizeof(int64_t);
  }

  CudaContext& context_;
  Workspace of_few_, of_many_;
  PinnedMemory on_host_;
  AttentionStats* counters_ = nullptr;   // the caller's; null: none are being counted
  std::vector<int64_t> num_value_rows_;  // of each sequence
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_ATTENTION_STATS_H_
