// A step's plan and its tables on the device: made by the first op that needs them, found again by
// the others.
#ifndef LSSAR_KERNELS_CUDA_STEP_TABLES_H_
#define LSSAR_KERNELS_CUDA_STEP_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/step_plan.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"

namespace lssar {

class StepTables {
 public:
  explicit StepTables(CudaContext& context) : context_(context), memory_(context.Driver()) {}

  // Plans the step and brings its tables to the device, unless they are there. False: an error.
  bool Prepare(const RaggedRows& rows, const KvLayout& layout);

  // Of the step that Prepare saw last.
  const CudaStepPlan& Plan() const { return plan_; }
  const CudaRow* Rows() const { return At<CudaRow>(at_.rows); }
  const CudaDecodeRow* DecodeRows() const { return At<CudaDecodeRow>(at_.decode_rows); }
  const CudaTile* Tiles() const { return At<CudaTile>(at_.tiles); }
  CudaPages PagesOf(const KvView& kv, int layer) const;

 private:
  // The rows that the plan was made for, by content: ops of one step bring the same again.
  struct PlannedRows {
    std::vector<SequenceRows> sequences;  // their pages are not read
    CudaPlanSetup setup;
  };

  bool Holds(const RaggedRows& rows, const CudaPlanSetup& setup) const;
  template <typename T>
  const T* At(size_t offset) const {
    return reinterpret_cast<const T*>(static_cast<const unsigned char*>(memory_.Address()) +
                                      offset);
  }
  // Returns where the array will lie, as an offset.
  template <typename T>
  size_t Add(const std::vector<T>& array);

  CudaContext& context_;
  Workspace memory_;
  CudaStepPlan plan_;
  PlannedRows planned_;
  std::vector<unsigned char> bytes_;  // of all tables, as they go to the device
  struct {
    size_t rows = 0, pages = 0, decode_rows = 0, tiles = 0;
  } at_;  // in bytes_
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_STEP_TABLES_H_
