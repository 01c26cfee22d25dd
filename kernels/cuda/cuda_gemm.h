// Embed, Linear and Logits of the cuda backend.
#ifndef LSSAR_KERNELS_CUDA_CUDA_GEMM_H_
#define LSSAR_KERNELS_CUDA_CUDA_GEMM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/gemm_library.h"
#include "kernels/cuda/launch_plan.h"
#include "kernels/ops.h"

namespace lssar {

// Rows up to which a GEMM runs without tiles: its blocks read x again for each 8 columns.
inline constexpr int kMaxRowsWithoutTiles = 8;

// Sets the tile and the cluster of a GEMM of num_rows rows: large tiles read less, but enough of
// them must fill the device.
void ChooseTile(const CudaDevice& device, CudaLinearArgs* gemm);

// Rows from which a GEMM may go to the library. With fewer, our own kernels are bound by memory,
// and graphs of decode steps hold them.
inline constexpr int kMinLibraryRows = kMaxBucketRows + 1;

inline CudaNorm NormOf(const NormView& norm) {
  return {.kind = norm.kind, .weight = norm.weight, .bias = norm.bias, .epsilon = norm.epsilon};
}

class CudaGemm {
 public:
  // `library`: for GEMMs of many rows; null: our own kernels run all GEMMs.
  // log: of the choice for each shape; null: none.
  CudaGemm(CudaContext& context, std::unique_ptr<GemmLibrary> library,
           std::function<void(std::string_view)> log)
      : context_(context),
        library_(std::move(library)),
        log_(std::move(log)),
        rows_memory_(context.Driver()),
        ids_memory_(context.Driver()),
        library_memory_(context.Driver()) {}

  // Reserves the library's workspace.
  absl::Status ReserveWorkspace();
  bool HasLibrary() const { return library_ != nullptr; }

  void Embed(const EmbedArgs& args);
  void Linear(const LinearArgs& args);
  void Logits(const LogitsArgs& args);
  void Norm(const NormArgs& args);

 private:
  const int32_t* CopyIds(std::span<const int32_t> ids);
  // Applies the norm to x, or to selected rows of it, and splits the result into parts for a GEMM
  // with `weight`. False: an error.
  bool SplitRows(CudaSplitArgs args, const CudaMatrix& weight);
  // SplitRows, then the GEMM by our own kernels.
  void RunKernels(CudaSplitArgs rows, CudaLinearArgs gemm);

  // False: our own kernels have to run the GEMM.
  bool RunByLibrary(const LinearArgs& args, const CudaMatrix& weight);
  // Logs the sentence, once for the shape.
  void LogChoice(const LinearArgs& args, const CudaMatrix& weight, const std::string& choice);

  CudaContext& context_;
  const std::unique_ptr<GemmLibrary> library_;
  const std::function<void(std::string_view)> log_;
  std::set<std::string> logged_;
  CudaSplitRows split_rows_;
  Workspace rows_memory_, ids_memory_, library_memory_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_GEMM_H_
