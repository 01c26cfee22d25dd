// Sample of the cuda backend: rows to the device, ids and log-probabilities back, logits neither.
#ifndef LSSAR_KERNELS_CUDA_CUDA_SAMPLER_H_
#define LSSAR_KERNELS_CUDA_CUDA_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/ops.h"

namespace lssar {

class CudaSampler {
 public:
  explicit CudaSampler(CudaContext& context)
      : context_(context),
        rows_memory_(context.Driver()),
        scores_memory_(context.Driver()),
        sampled_memory_(context.Driver()) {}

  // Starts it; nobody waits.
  void Sample(const SampleArgs& args);

  // Hands out what Sample brought back.
  // Requires  the stream has been waited for
  void Give();

 private:
  // A call of Sample whose results are in results_, at the call's own place.
  struct Call {
    std::span<SampleResult> out;
    size_t max_top = 0;
  };

  // Writes rows_ and ids_; how many rows have scores of their own.
  int DescribeRows(const SampleArgs& args);
  CudaSampleRow DescribeDraw(const SampleRequest& row, int num_adjusted);
  CudaSampleIds AddIds(std::span<const int32_t> ids);
  // rows_ and ids_ on the device; null, and an error kept, where they cannot be.
  unsigned char* CopyRows();
  static void Unpack(const Call& call, const void* results);

  CudaContext& context_;
  Workspace rows_memory_, scores_memory_, sampled_memory_;

  // Of the call; kept for their memory.
  std::vector<CudaSampleRow> rows_;
  std::vector<CudaSampleId> ids_;

  // Of the step.
  std::vector<Call> calls_;
  std::vector<std::unique_ptr<PinnedMemory>> results_;  // one a call, kept for the next step's
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_SAMPLER_H_
