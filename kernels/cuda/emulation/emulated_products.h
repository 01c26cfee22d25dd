// MatrixProducts on the host: what the library computes, as exact sums.
#ifndef LSSAR_KERNELS_CUDA_EMULATION_EMULATED_PRODUCTS_H_
#define LSSAR_KERNELS_CUDA_EMULATION_EMULATED_PRODUCTS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/matrix_products.h"

namespace lssar {

absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeEmulatedProducts();

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_EMULATION_EMULATED_PRODUCTS_H_
