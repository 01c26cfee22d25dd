#include "kernels/cuda/emulation/emulated_gemm.h"

#include <cmath>
#include <cstddef>
#include <string>

#include "kernels/cuda/emulation/stream.h"
#include "kernels/float_bits.h"

namespace lssar {
namespace {

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

void Compute(const LibraryGemmArgs& args) {
  const size_t width = size_t(args.weight.padded_cols);
  const size_t num_cols = size_t(args.weight.num_rows);
  const DType dtype = args.weight.dtype;
  for (size_t row = 0; row < size_t(args.num_rows); ++row) {
    for (size_t col = 0; col < num_cols; ++col) {
      double sum = 0;
      for (size_t k = 0; k < width; ++k) {
        sum += double(LoadElement(args.x, dtype, row * width + k)) *
               double(LoadElement(args.weight.elements, dtype, col * width + k));
      }
      if (args.bias != nullptr) sum += double(args.bias[col]);
      if (args.gelu) sum = Gelu(sum);
      const size_t at = row * num_cols + col;
      if (args.residual != nullptr) sum += double(args.residual[at]);
      args.out[at] = float(sum);
    }
  }
}

class EmulatedGemm final : public GemmLibrary {
 public:
  bool Supports(const LibraryGemmArgs& args) override {
    const bool is_half = args.weight.dtype == DType::kF16 || args.weight.dtype == DType::kBF16;
    return is_half && !(args.gelu && args.residual != nullptr);
  }
  std::string Describe(const LibraryGemmArgs&) override { return "the emulated library"; }
  int Run(const LibraryGemmArgs& args, void* stream) override {
    return static_cast<emulation::Stream*>(stream)->Submit([args] { Compute(args); });
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<GemmLibrary>> MakeEmulatedGemm() {
  return std::make_unique<EmulatedGemm>();
}

}  // namespace lssar
