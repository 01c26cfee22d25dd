#include "kernels/cuda/emulation/emulated_gemm.h"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "kernels/cuda/emulation/stream.h"
#include "kernels/float_bits.h"

namespace lssar {
namespace {

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

std::vector<float> Row(const void* elements, DType dtype, size_t row, size_t width) {
  std::vector<float> values(width);
  for (size_t k = 0; k < width; ++k) values[k] = LoadElement(elements, dtype, row * width + k);
  return values;
}

// Four sums in flight.
double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sums[4] = {};
  for (size_t k = 0; k < a.size(); ++k) sums[k % 4] += double{a[k]} * double{b[k]};
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void Compute(const LibraryGemmArgs& args) {
  const size_t width = size_t(args.weight.padded_cols);
  const DType dtype = args.weight.dtype;
  std::vector<std::vector<float>> x;
  for (size_t row = 0; row < size_t(args.num_rows); ++row) {
    x.push_back(Row(args.x, dtype, row, width));
  }
  for (size_t col = 0; col < size_t(args.weight.num_rows); ++col) {
    const std::vector<float> w = Row(args.weight.elements, dtype, col, width);
    for (size_t row = 0; row < x.size(); ++row) {
      double sum = Dot(x[row], w);
      if (args.bias != nullptr) sum += double(args.bias[col]);
      if (args.gelu) sum = Gelu(sum);
      const size_t at = row * size_t(args.out_stride) + col;
      if (args.residual != nullptr) sum += double(args.residual[at]);
      args.out[at] = float(sum);
    }
  }
}

class EmulatedGemm final : public GemmLibrary {
 public:
  bool Supports(const LibraryGemmArgs& args) override {
    const DType dtype = args.weight.dtype;
    const bool is_float = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
    return is_float && !(args.gelu && args.residual != nullptr);
  }
  std::string Describe(const LibraryGemmArgs&) override { return "the emulated library"; }
  absl::Status Run(const LibraryGemmArgs& args, void* stream) override {
    const int code = static_cast<emulation::Stream*>(stream)->Submit([args] { Compute(args); });
    return code == 0 ? absl::OkStatus()
                     : absl::InternalError(StrCat("the emulated library: error ", code));
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<GemmLibrary>> MakeEmulatedGemm() {
  return std::make_unique<EmulatedGemm>();
}

}  // namespace lssar
