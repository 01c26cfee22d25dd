// Embed, Linear and Logits of the cuda backend.
#ifndef LSSAR_KERNELS_CUDA_CUDA_GEMM_H_
#define LSSAR_KERNELS_CUDA_CUDA_GEMM_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/matrix_products.h"
#include "kernels/cuda/step_plan.h"
#include "kernels/ops.h"

namespace lssar {

// Rows from which a library may do a product: fewer read the weights at the speed of memory by our
// own kernels, and are what graphs hold.
inline constexpr int kMinLibraryRows = kMaxBucketRows + 1;

class CudaGemm {
 public:
  // `library`: for products of many rows; null: our own kernels do all.
  CudaGemm(CudaContext& context, std::unique_ptr<MatrixProducts> library)
      : context_(context),
        library_(std::move(library)),
        rows_memory_(context.Driver()),
        ids_memory_(context.Driver()),
        library_memory_(context.Driver()) {}

  // What the library works in.
  absl::Status ReserveWorkspace();
  bool HasLibrary() const { return library_ != nullptr; }

  void Embed(const EmbedArgs& args);
  void Linear(const LinearArgs& args);
  void Logits(const LogitsArgs& args);

 private:
  const int32_t* CopyIds(std::span<const int32_t> ids);
  // x, or chosen rows of it, normalised and split into parts for a product with `weight`.
  bool SplitRows(CudaSplitArgs args, const NormView& norm, const CudaMatrix& weight);
  // The product of such rows by our own kernels; fills in what the two share.
  void Multiply(const CudaSplitArgs& rows, const NormView& norm, CudaLinearArgs product);

  // False: the product is for our own kernels.
  bool RunByLibrary(const LinearArgs& args, const CudaMatrix& weight);

  CudaContext& context_;
  const std::unique_ptr<MatrixProducts> library_;
  CudaSplitRows split_rows_;
  Workspace rows_memory_, ids_memory_, library_memory_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_GEMM_H_
