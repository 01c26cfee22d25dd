// GemmLibrary on the host, with sums in double.
#ifndef LSSAR_KERNELS_CUDA_EMULATION_EMULATED_GEMM_H_
#define LSSAR_KERNELS_CUDA_EMULATION_EMULATED_GEMM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm_library.h"

namespace lssar {

absl::StatusOr<std::unique_ptr<GemmLibrary>> MakeEmulatedGemm();

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_EMULATION_EMULATED_GEMM_H_
