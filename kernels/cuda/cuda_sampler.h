// Sample of the cuda backend. Requests are copied to the device, ids and log-probabilities back;
// logits stay on the device.
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

  // Starts sampling; does not wait.
  void Sample(const SampleArgs& args);

  // Writes the results of all calls of Sample since the last Publish to their SampleArgs::out.
  // Requires  the stream was synchronised
  void Publish();

 private:
  // A call of Sample. Call i has its results in results_[i].
  struct Call {
    std::span<SampleResult> out;
    size_t max_top = 0;
  };

  // Fills rows_ and ids_. Returns the number of rows whose scores differ from their logits.
  int DescribeRows(const SampleArgs& args);
  CudaSampleRow DescribeDraw(const SampleRequest& row, int num_adjusted);
  CudaSampleIds AddIds(std::span<const int32_t> ids);
  CudaSampleIds AddMask(std::span<const uint32_t> mask);
  // Copies rows_ and ids_ to the device. Null: an error.
  unsigned char* CopyRows();
  static void Unpack(const Call& call, const void* results);

  CudaContext& context_;
  Workspace rows_memory_, scores_memory_, sampled_memory_;

  // The current call's. Members, so that their memory is reused.
  std::vector<CudaSampleRow> rows_;
  std::vector<CudaSampleId> ids_;

  // The current step's.
  std::vector<Call> calls_;
  std::vector<std::unique_ptr<PinnedMemory>> results_;  // one a call, reused in the next step
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_SAMPLER_H_
