// Embed, Linear and Logits of the cuda backend.
#ifndef LSSAR_KERNELS_CUDA_CUDA_PRODUCTS_H_
#define LSSAR_KERNELS_CUDA_CUDA_PRODUCTS_H_

#include <cstdint>
#include <span>

#include "kernels/cuda/cuda_context.h"
#include "kernels/ops.h"

namespace lssar {

class CudaProducts {
 public:
  explicit CudaProducts(CudaContext& context)
      : context_(context), rows_memory_(context.Driver()), ids_memory_(context.Driver()) {}

  void Embed(const EmbedArgs& args);
  void Linear(const LinearArgs& args);
  void Logits(const LogitsArgs& args);

 private:
  const int32_t* CopyIds(std::span<const int32_t> ids);
  // x, or chosen rows of it, normalised and split into parts for a product with `weight`.
  bool SplitRows(CudaSplitArgs args, const CudaMatrix& weight);

  CudaContext& context_;
  CudaSplitRows split_rows_;
  Workspace rows_memory_, ids_memory_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_CUDA_PRODUCTS_H_
