// GEMMs of many rows by a library, of few by our own kernels: on the emulated device with the
// library's twin and, where there is a GPU with cuBLASLt, on it.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/emulation/emulated_gemm.h"
#include "tests/kernels/cuda/faulty_driver.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

constexpr int kIn = 72, kOut = 40, kRows = 70;

// LayerNorm, bias, GELU or a residual, over kRows rows or the first few of them.
struct ProductCase {
  bool norm = false;
  bool gelu = false;
  bool residual = false;
};

std::vector<float> Multiply(Backend& backend, DType stored, const ProductCase& of, int num_rows) {
  const std::unique_ptr<PackedMatrix> w =
      Pack(backend, RandomFloats(size_t{kOut} * kIn, 1, 0.3f), kOut, kIn, stored);
  Floats x(backend, RandomFloats(size_t{kRows} * kIn, 2));
  Floats norm_weight(backend, RandomFloats(kIn, 3)), norm_bias(backend, RandomFloats(kIn, 4));
  Floats bias(backend, RandomFloats(kOut, 5));
  Floats residual(backend, RandomFloats(size_t{kRows} * kOut, 6));
  LinearArgs args{.num_rows = num_rows,
                  .x = x.Address(),
                  .norm = {},
                  .weight = w.get(),
                  .bias = bias.Address(),
                  .activation = of.gelu ? Activation::kGeluTanh : Activation::kNone,
                  .residual = of.residual ? residual.Address() : nullptr,
                  .out = residual.Address()};
  if (of.norm)
    args.norm = {
        .kind = NormKind::kLayerNorm, .weight = norm_weight.Address(), .bias = norm_bias.Address()};
  backend.Linear(args);
  LSSAR_CHECK(backend.Synchronize().ok());
  std::vector<float> out = residual.Values();
  out.resize(size_t(num_rows) * kOut);
  return out;
}

const ProductCase kCases[] = {{},
                              {.norm = true},
                              {.norm = true, .gelu = true},
                              {.residual = true},
                              {.gelu = true, .residual = true}};

std::unique_ptr<Backend> Open(const std::string& device, bool fast_gemm) {
  if (device == "Emulated") return MakeEmulatedBackend(90, fast_gemm);
  auto backend = MakeBackend({.name = "cuda", .fast_gemm = fast_gemm});
  return backend.ok() ? *std::move(backend) : nullptr;
}

std::vector<std::string> Devices() {
  std::vector<std::string> devices = {"Emulated"};
  if (Open("Gpu", /*fast_gemm=*/true) != nullptr) devices.emplace_back("Gpu");
  return devices;
}

class FastGemmTest : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  const DType stored_ = std::get<1>(GetParam());
  const std::unique_ptr<Backend> exact_ = Open(std::get<0>(GetParam()), false);
  const std::unique_ptr<Backend> fast_ = Open(std::get<0>(GetParam()), true);
};

// sum_k |x_k w_k| of each element, x after its norm.
std::vector<double> Magnitudes(bool norm) {
  const std::vector<float> w = RandomFloats(size_t{kOut} * kIn, 1, 0.3f);
  const std::vector<float> x = RandomFloats(size_t{kRows} * kIn, 2);
  const std::vector<float> weight = RandomFloats(kIn, 3), bias = RandomFloats(kIn, 4);
  std::vector<double> sums;
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<double> normed(&x[row * kIn], &x[row * kIn] + kIn);
    double mean = 0, squares = 0;
    for (const double value : normed) mean += value / kIn;
    for (const double value : normed) squares += (value - mean) * (value - mean) / kIn;
    for (size_t k = 0; norm && k < kIn; ++k) {
      normed[k] = (normed[k] - mean) / std::sqrt(squares) * double{weight[k]} + double{bias[k]};
    }
    for (size_t col = 0; col < kOut; ++col) {
      sums.push_back(0);
      for (size_t k = 0; k < kIn; ++k)
        sums.back() += std::abs(normed[k] * double{w[col * kIn + k]});
    }
  }
  return sums;
}

TEST_P(FastGemmTest, ManyRowsAreRoundedOnce) {
  const double rounding = stored_ == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  for (const ProductCase& of : kCases) {
    const std::vector<float> want = Multiply(*exact_, stored_, of, kRows);
    const std::vector<float> got = Multiply(*fast_, stored_, of, kRows);
    std::vector<double> bounds = Magnitudes(of.norm);
    // GELU is nowhere steeper than 1.13; the rest is both sides' fp32, and weights' own rounding.
    for (double& bound : bounds) bound = 1.2 * (rounding * bound + 4e-5 * (bound + 4));
    EXPECT_TRUE(AllClose(got, std::vector<double>(want.begin(), want.end()), bounds));
    const bool is_own = of.gelu && of.residual;  // which the library does not support
    EXPECT_EQ(got == want, is_own);
  }
}

TEST_P(FastGemmTest, FewRowsAreExact) {
  for (const ProductCase& of : kCases) {
    for (const int num_rows : {1, 64}) {
      EXPECT_TRUE(SameBits(Multiply(*fast_, stored_, of, num_rows),
                           Multiply(*exact_, stored_, of, num_rows)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, FastGemmTest,
                         testing::Combine(testing::ValuesIn(Devices()),
                                          testing::Values(DType::kF16, DType::kBF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::string(NameOf(std::get<1>(test.param)));
                         });

TEST(FastGemmOfOthersTest, OtherWeightTypesUseOurKernels) {
  const std::unique_ptr<Backend> exact = MakeEmulatedBackend();
  const std::unique_ptr<Backend> fast = MakeEmulatedBackend(90, /*fast_gemm=*/true);
  for (const DType stored : {DType::kF32, DType::kI8}) {
    EXPECT_TRUE(SameBits(Multiply(*fast, stored, {}, kRows), Multiply(*exact, stored, {}, kRows)));
  }
}

TEST(FastGemmOfOthersTest, BackendDescribesIt) {
  const std::unique_ptr<Backend> exact = MakeEmulatedBackend();
  const std::unique_ptr<Backend> fast = MakeEmulatedBackend(90, /*fast_gemm=*/true);
  EXPECT_TRUE(exact->IsBatchInvariant());
  EXPECT_FALSE(fast->IsBatchInvariant());
  EXPECT_EQ(exact->Describe().find("fast"), std::string::npos);
  EXPECT_NE(fast->Describe().find("fast GEMM"), std::string::npos);
}

TEST(FastGemmOfOthersTest, EachShapeIsLoggedOnce) {
  std::vector<std::string> lines;
  CudaBackendParts parts = EmulatedParts();
  parts.make_gemm_library = &MakeEmulatedGemm;
  parts.log = [&](std::string_view line) { lines.emplace_back(line); };
  const std::unique_ptr<Backend> backend = *MakeCudaBackend(std::move(parts), 0);
  for (int i = 0; i < 2; ++i) {
    Multiply(*backend, DType::kF16, {.gelu = true}, kRows);
    Multiply(*backend, DType::kF16, {.gelu = true, .residual = true}, kRows);
    Multiply(*backend, DType::kI8, {}, kRows);
    Multiply(*backend, DType::kF16, {.residual = true}, 64);  // few rows: not for the library
  }
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "GEMM of fp16 weights [40, 72] with bias, GELU: the emulated library",
                       "GEMM of fp16 weights [40, 72] with bias, GELU, residual: our own kernels, "
                       "because the library does not run it",
                       "GEMM of int8 weights [40, 72] with bias: our own kernels, because the "
                       "library does not run it"}));
}

TEST(FastGemmOfOthersTest, FailedStartIsReported) {
  CudaBackendParts parts = EmulatedParts();
  parts.make_gemm_library = +[]() -> absl::StatusOr<std::unique_ptr<GemmLibrary>> {
    return absl::FailedPreconditionError("no library");
  };
  EXPECT_EQ(MakeCudaBackend(std::move(parts), 0).status().message(), "no library");

  const auto script = std::make_shared<DriverScript>();
  script->Fail(DriverCall::kAllocate, kCudaOutOfMemory);
  parts = EmulatedParts();
  parts.driver = std::make_unique<FaultyDriver>(script);
  parts.make_gemm_library = &MakeEmulatedGemm;
  EXPECT_EQ(MakeCudaBackend(std::move(parts), 0).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(script->alive.empty());
}

}  // namespace
}  // namespace lssar
