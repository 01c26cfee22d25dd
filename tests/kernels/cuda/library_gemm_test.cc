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

constexpr int kIn = 72, kOut = 200, kRows = 70;

// What a Linear does besides x W^T + bias.
struct ProductCase {
  bool norm = false;
  Activation activation = Activation::kNone;
  bool gate = false;
  bool residual = false;
  float scale = 1;
};

// The product of kRows rows, or of the first few of them. Gate and residual are the output's array.
std::vector<float> Multiply(Backend& backend, DType stored, const ProductCase& of, int num_rows) {
  const std::unique_ptr<PackedMatrix> w =
      Pack(backend, RandomFloats(size_t{kOut} * kIn, 1, 0.3f), kOut, kIn, stored);
  Floats x(backend, RandomFloats(size_t{kRows} * kIn, 2));
  Floats norm_weight(backend, RandomFloats(kIn, 3)), norm_bias(backend, RandomFloats(kIn, 4));
  Floats bias(backend, RandomFloats(kOut, 5));
  Floats out(backend, RandomFloats(size_t{kRows} * kOut, 6));
  LinearArgs args{.num_rows = num_rows,
                  .x = x.Address(),
                  .norm = {},
                  .weight = w.get(),
                  .bias = bias.Address(),
                  .activation = of.activation,
                  .multiply = of.gate ? out.Address() : nullptr,
                  .scale = of.scale,
                  .residual = of.residual ? out.Address() : nullptr,
                  .out = out.Address()};
  if (of.norm) {
    args.norm = {
        .kind = NormKind::kLayerNorm, .weight = norm_weight.Address(), .bias = norm_bias.Address()};
  }
  backend.Linear(args);
  EXPECT_TRUE(backend.Synchronize().ok());
  std::vector<float> values = out.Values();
  values.resize(size_t(num_rows) * kOut);
  return values;
}

const ProductCase kCases[] = {{},
                              {.norm = true},
                              {.norm = true, .activation = Activation::kGeluTanh},
                              {.residual = true},
                              // Beyond a library's epilogue:
                              {.activation = Activation::kGeluTanh, .residual = true},
                              {.activation = Activation::kSilu},
                              {.norm = true, .gate = true},
                              {.residual = true, .scale = 0.5f}};

std::unique_ptr<Backend> Open(const std::string& device, bool has_library) {
  if (device == "Emulated") return MakeEmulatedBackend(90, has_library);
  auto backend = MakeBackend({.name = "cuda", .batch_invariant = !has_library});
  return backend.ok() ? *std::move(backend) : nullptr;
}

std::vector<std::string> Devices() {
  std::vector<std::string> devices = {"Emulated"};
  if (Open("Gpu", true) != nullptr) devices.emplace_back("Gpu");
  return devices;
}

class LibraryGemmTest : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  const DType stored_ = std::get<1>(GetParam());
  const std::unique_ptr<Backend> exact_ = Open(std::get<0>(GetParam()), false);
  const std::unique_ptr<Backend> default_ = Open(std::get<0>(GetParam()), true);
};

// sum_k |x_k w_k| of each element, x after its norm.
std::vector<double> Magnitudes(bool norm, int num_rows) {
  const std::vector<float> w = RandomFloats(size_t{kOut} * kIn, 1, 0.3f);
  const std::vector<float> x = RandomFloats(size_t{kRows} * kIn, 2);
  const std::vector<float> weight = RandomFloats(kIn, 3), bias = RandomFloats(kIn, 4);
  std::vector<double> sums;
  for (size_t row = 0; row < size_t(num_rows); ++row) {
    std::vector<double> normed(&x[row * kIn], &x[row * kIn] + kIn);
    double mean = 0, squares = 0;
    for (const double value : normed) mean += value / kIn;
    for (const double value : normed) squares += (value - mean) * (value - mean) / kIn;
    for (size_t k = 0; norm && k < kIn; ++k) {
      normed[k] = (normed[k] - mean) / std::sqrt(squares) * double{weight[k]} + double{bias[k]};
    }
    for (size_t col = 0; col < kOut; ++col) {
      sums.push_back(0);
      for (size_t k = 0; k < kIn; ++k) {
        sums.back() += std::abs(normed[k] * double{w[col * kIn + k]});
      }
    }
  }
  return sums;
}

double RoundingOf(DType stored) {
  switch (stored) {
    case DType::kF32: return 0;
    case DType::kBF16: return 0x1p-8;
    case DType::kI8: return 0x1p-10;  // of x and of the widened weights
    default: return 0x1p-11;
  }
}

TEST_P(LibraryGemmTest, ManyRowsAreRoundedOnce) {
  for (const ProductCase& of : kCases) {
    for (const int num_rows : {kMaxOwnRows + 1, kRows}) {
      const std::vector<float> want = Multiply(*exact_, stored_, of, num_rows);
      const std::vector<float> got = Multiply(*default_, stored_, of, num_rows);
      std::vector<double> bounds = Magnitudes(of.norm, num_rows);
      const std::vector<float> gates = RandomFloats(size_t{kRows} * kOut, 6);
      for (size_t i = 0; i < bounds.size(); ++i) {
        // GELU and SiLU are nowhere steeper than 1.13; the rest is both sides' fp32.
        const double slope = 1.2 * (of.gate ? std::abs(double{gates[i]}) : 1.0);
        bounds[i] = slope * (RoundingOf(stored_) * bounds[i] + 4e-5 * (bounds[i] + 4)) + 1e-6;
      }
      EXPECT_TRUE(AllClose(got, std::vector<double>(want.begin(), want.end()), bounds))
          << num_rows << " rows";
      EXPECT_NE(got, want);
    }
  }
}

TEST_P(LibraryGemmTest, FewRowsAreExact) {
  for (const ProductCase& of : kCases) {
    for (const int num_rows : {1, kMaxOwnRows}) {
      EXPECT_TRUE(SameBits(Multiply(*default_, stored_, of, num_rows),
                           Multiply(*exact_, stored_, of, num_rows)));
    }
  }
}

TEST_P(LibraryGemmTest, LogitsOfManyRows) {
  const auto logits = [&](Backend& backend) {
    const auto w = Pack(backend, RandomFloats(size_t{kOut} * kIn, 1, 0.3f), kOut, kIn, stored_);
    Floats x(backend, RandomFloats(size_t{kRows} * kIn, 2));
    Floats out(backend, std::vector<float>(20 * kOut));
    std::vector<int32_t> rows;
    for (int i = 0; i < 20; ++i) rows.push_back(i * 3);
    backend.Logits({.x = x.Address(),
                    .row_ids = rows,
                    .norm = {},
                    .weight = w.get(),
                    .softcap = 5,
                    .logits = out.Address()});
    EXPECT_TRUE(backend.Synchronize().ok());
    return out.Values();
  };
  const std::vector<float> want = logits(*exact_);
  // A sum of |x w| is at most 40 here, and the cap's slope at most 1.
  const std::vector<double> bounds(want.size(), 40 * (RoundingOf(stored_) + 4e-5));
  EXPECT_TRUE(AllClose(logits(*default_), std::vector<double>(want.begin(), want.end()), bounds));
}

INSTANTIATE_TEST_SUITE_P(Devices, LibraryGemmTest,
                         testing::Combine(testing::ValuesIn(Devices()),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16,
                                                          DType::kI8)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::string(NameOf(std::get<1>(test.param)));
                         });

// The emulated library, which does not run some GEMMs.
struct LimitedGemm final : GemmLibrary {
  explicit LimitedGemm(bool adds_epilogue) : has_epilogue(adds_epilogue) {}
  bool Supports(const LibraryGemmArgs& args) override {
    return has_epilogue && args.bias == nullptr && inner->Supports(args);
  }
  std::string Describe(const LibraryGemmArgs& args) override { return inner->Describe(args); }
  absl::Status Run(const LibraryGemmArgs& args, void* stream) override {
    return inner->Run(args, stream);
  }

  const bool has_epilogue;
  const std::unique_ptr<GemmLibrary> inner = *MakeEmulatedGemm();
};

std::unique_ptr<Backend> MakeWith(absl::StatusOr<std::unique_ptr<GemmLibrary>> (*make)(),
                                  std::vector<std::string>* lines = nullptr) {
  CudaBackendParts parts = EmulatedParts();
  parts.make_gemm_library = make;
  if (lines != nullptr) {
    parts.log = [lines](std::string_view line) { lines->emplace_back(line); };
  }
  parts.max_widened_bytes = size_t{128} * 128 * sizeof(uint16_t);  // 128 rows of 128 columns
  return *MakeCudaBackend(std::move(parts), 0);
}

TEST(GemmLibraryTest, WhatTheLibraryDoesNotRunIsOurs) {
  const std::unique_ptr<Backend> exact = MakeEmulatedBackend();
  const std::unique_ptr<Backend> none =
      MakeWith(+[]() -> absl::StatusOr<std::unique_ptr<GemmLibrary>> {
        return std::make_unique<LimitedGemm>(false);
      });
  const std::unique_ptr<Backend> without_bias =
      MakeWith(+[]() -> absl::StatusOr<std::unique_ptr<GemmLibrary>> {
        return std::make_unique<LimitedGemm>(true);
      });
  const std::unique_ptr<Backend> whole = MakeWith(&MakeEmulatedGemm);
  for (const ProductCase& of : kCases) {
    EXPECT_TRUE(SameBits(Multiply(*none, DType::kF16, of, kRows),
                         Multiply(*exact, DType::kF16, of, kRows)));
    const std::vector<float> want = Multiply(*whole, DType::kF16, of, kRows);
    EXPECT_TRUE(AllClose(Multiply(*without_bias, DType::kF16, of, kRows),
                         std::vector<double>(want.begin(), want.end()),
                         std::vector<double>(want.size(), 1e-5)));
  }
}

// 200 rows of int8 weights in slices of 128 and 72.
TEST(GemmLibraryTest, SlicesOfInt8WeightsHaveTheBitsOfTheWhole) {
  const std::unique_ptr<Backend> whole = MakeEmulatedBackend(90, /*has_library=*/true);
  const std::unique_ptr<Backend> sliced = MakeWith(&MakeEmulatedGemm);
  for (const ProductCase& of : kCases) {
    EXPECT_TRUE(SameBits(Multiply(*sliced, DType::kI8, of, kRows),
                         Multiply(*whole, DType::kI8, of, kRows)));
  }
}

TEST(GemmLibraryTest, BackendDescribesIt) {
  const std::unique_ptr<Backend> exact = MakeEmulatedBackend();
  const std::unique_ptr<Backend> fast = MakeEmulatedBackend(90, /*has_library=*/true);
  EXPECT_TRUE(exact->IsBatchInvariant());
  EXPECT_FALSE(fast->IsBatchInvariant());
  EXPECT_NE(exact->Describe().find(", batch-invariant"), std::string::npos);
  EXPECT_EQ(fast->Describe().find("batch-invariant"), std::string::npos);
}

TEST(GemmLibraryTest, EachShapeIsLoggedOnce) {
  std::vector<std::string> lines, none;
  const std::unique_ptr<Backend> backend = MakeWith(&MakeEmulatedGemm, &lines);
  const std::unique_ptr<Backend> unsupported = MakeWith(
      +[]() -> absl::StatusOr<std::unique_ptr<GemmLibrary>> {
        return std::make_unique<LimitedGemm>(false);
      },
      &none);
  for (int i = 0; i < 2; ++i) {
    Multiply(*backend, DType::kF16, {.activation = Activation::kGeluTanh}, kRows);
    Multiply(*backend, DType::kF16, {.activation = Activation::kGeluTanh, .residual = true}, kRows);
    Multiply(*backend, DType::kI8, {.gate = true}, kRows);
    Multiply(*backend, DType::kBF16, {}, kMaxOwnRows);  // few rows: not for the library
    Multiply(*unsupported, DType::kF32, {}, kRows);
  }
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "GEMM of fp16 weights [200, 72] with bias, GELU: the emulated library",
                "GEMM of fp16 weights [200, 72] with bias, GELU, residual: the emulated library, "
                "then our own kernel",
                "GEMM of int8 weights [200, 72] with bias, gate: the emulated library, weights "
                "widened to fp16, then our own kernel"}));
  EXPECT_EQ(none, (std::vector<std::string>{"GEMM of fp32 weights [200, 72] with bias: our own "
                                            "kernels, because the library does not run it"}));
}

TEST(GemmLibraryTest, FailedStartIsReported) {
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
