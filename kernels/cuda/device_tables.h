// A step's plan and its tables on the device. The first op of a step makes them; later ops reuse
// them.
#ifndef LSSAR_KERNELS_CUDA_DEVICE_TABLES_H_
#define LSSAR_KERNELS_CUDA_DEVICE_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/launch_plan.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"

namespace lssar {

class DeviceTables {
 public:
  explicit DeviceTables(CudaContext& context)
      : context_(context), memory_(context.Driver()), bucket_memory_(context.Driver()) {}

  // Plans the step and copies its tables to the device, unless they are there. False: an error.
  bool Prepare(const RaggedBatch& rows, const KvLayout& layout);

  // The same in the shape of a bucket, with the rows' ids, in separate memory with fixed addresses.
  // Prepare uses these tables until LeaveBucket. False: an error.
  // Requires  the step fits the bucket
  bool EnterBucket(const StepArgs& args, const DecodeBucket& bucket);
  void LeaveBucket();
  const int32_t* BucketIds() const { return At<int32_t>(at_.ids); }

  // The plan and tables of the last Prepare.
  const CudaLaunchPlan& Plan() const { return plan_; }
  const CudaRow* Rows() const { return At<CudaRow>(at_.rows); }
  const CudaDecodeRow* DecodeRows() const { return At<CudaDecodeRow>(at_.decode_rows); }
  const CudaTile* Tiles() const { return At<CudaTile>(at_.tiles); }
  CudaPages PagesOf(const KvView& kv, int layer) const;

 private:
  // The rows that the plan was made for. Ops of one step pass equal rows.
  struct PlannedRows {
    std::vector<SequenceSlice> sequences;  // their `pages` are not used
    CudaPlanSetup setup;
  };

  // Offsets of the tables in the memory.
  struct Offsets {
    size_t rows = 0, pages = 0, decode_rows = 0, tiles = 0, ids = 0;
  };

  CudaPlanSetup SetupFor(const KvLayout& layout) const;
  bool Holds(const RaggedBatch& rows, const CudaPlanSetup& setup) const;
  template <typename T>
  const T* At(size_t offset) const {
    const Workspace& memory = is_in_bucket_ ? bucket_memory_ : memory_;
    return reinterpret_cast<const T*>(static_cast<const unsigned char*>(memory.Address()) + offset);
  }
  // Appends the array to bytes_ with space for max_count elements. Returns its offset.
  template <typename T>
  size_t Add(std::span<const T> array, size_t max_count);

  CudaContext& context_;
  Workspace memory_, bucket_memory_;
  bool is_in_bucket_ = false;
  CudaLaunchPlan plan_;
  PlannedRows planned_;
  std::vector<unsigned char> bytes_;  // of all tables, as copied to the device
  Offsets at_;
  std::vector<int32_t> ids_;  // of a bucket's rows
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_DEVICE_TABLES_H_
