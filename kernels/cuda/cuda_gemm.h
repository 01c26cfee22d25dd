// Embed, Linear and Logits of the cuda backend.
#ifndef LSSAR_KERNELS_CUDA_CUDA_GEMM_H_
#define LSSAR_KERNELS_CUDA_CUDA_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/gemm_library.h"
#include "kernels/cuda/launch_plan.h"
#include "kernels/ops.h"

namespace lssar {

// Rows of a GEMM that our own kernels compute although there is a library, at most: they read the
// weights once, which bounds it. With more rows, their blocks read x too often.
inline constexpr int kMaxOwnRows = 8;

// int8 weights are widened for the library in slices of so many bytes, at most.
inline constexpr size_t kMaxWidenedBytes = size_t{64} << 20;

inline CudaNorm NormOf(const NormView& norm) {
  return {.kind = norm.kind, .weight = norm.weight, .bias = norm.bias, .epsilon = norm.epsilon};
}

class CudaGemm {
 public:
  // `library`: for GEMMs of many rows; null: our own kernels run all GEMMs.
  // log: of the choice for each shape; null: none.
  CudaGemm(CudaContext& context, std::unique_ptr<GemmLibrary> library, size_t max_widened_bytes,
           std::function<void(std::string_view)> log)
      : context_(context),
        library_(std::move(library)),
        max_widened_bytes_(max_widened_bytes),
        log_(std::move(log)),
        rows_memory_(context.Driver()),
        ids_memory_(context.Driver()),
        library_memory_(context.Driver()),
        sums_memory_(context.Driver()),
        widened_memory_(context.Driver()) {}

  // Reserves the library's workspace.
  absl::Status ReserveWorkspace();
  // Backend::ReserveSteps
  absl::Status ReserveRows(int max_rows, int max_width);
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
  // The GEMM of `rows`, by the library or by our own kernels.
  void Run(const CudaSplitArgs& rows, CudaLinearArgs gemm);

  // False: our own kernels have to run the GEMM.
  bool RunByLibrary(CudaSplitArgs rows, const CudaLinearArgs& gemm);
  // What the library computes of `gemm`, for a slice of the weights' rows that begins at `first`.
  LibraryGemmArgs SliceOf(const CudaLinearArgs& gemm, int first, bool with_epilogue) const;
  // Rows of a slice: all, or as many int8 weights as are widened at a time.
  int SliceRows(const CudaMatrix& weight) const;
  // Makes the slice's int8 weights fp16. False: an error.
  bool WidenSlice(int first, CudaMatrix* slice);
  // Whether the library runs all slices.
  bool IsSupported(const CudaLinearArgs& gemm, bool with_epilogue);
  // What runs a GEMM of many rows: the library with the epilogue, the library and then our kernel
  // for it, our own kernels alone.
  enum class GemmChoice { kLibrary, kLibraryThenOwn, kOwn };
  // Logs it, once for the shape.
  void LogChoice(const CudaLinearArgs& gemm, GemmChoice choice);

  CudaContext& context_;
  const std::unique_ptr<GemmLibrary> library_;
  const size_t max_widened_bytes_;
  const std::function<void(std::string_view)> log_;
  // Choice, type, rows and columns of the weights, activation, bias, gate, residual, softcap.
  std::set<std::tuple<GemmChoice, DType, int, int, Activation, bool, bool, bool, bool>> logged_;
  CudaSplitRows split_rows_;
  Workspace rows_memory_, ids_memory_, library_memory_, sums_memory_, widened_memory_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_GEMM_H_
