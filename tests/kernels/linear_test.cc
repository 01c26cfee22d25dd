#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/ops.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

struct Shape {
  int num_rows;
  int in;
  int out;
};

// The optional parts of a Linear.
struct Fusion {
  bool norm = false;
  bool bias = false;
  bool gelu = false;
  bool residual = false;
};
constexpr Fusion kPlain = {};
constexpr Fusion kMlpUp = {.norm = true, .bias = true, .gelu = true};
constexpr Fusion kMlpDown = {.bias = true, .residual = true};
constexpr Fusion kAll = {.norm = true, .bias = true, .gelu = true, .residual = true};

// Inputs of one Linear, in plain vectors.
struct Case {
  Case(const Shape& s, const Fusion& f, DType dtype)
      : shape(s),
        fusion(f),
        stored(dtype),
        x(RandomFloats(size_t(s.num_rows) * size_t(s.in), 1)),
        w(RandomFloats(size_t(s.out) * size_t(s.in), 2, 0.3f)),
        norm_weight(RandomFloats(size_t(s.in), 3)),
        norm_bias(RandomFloats(size_t(s.in), 4)),
        bias(RandomFloats(size_t(s.out), 5)),
        residual(RandomFloats(size_t(s.num_rows) * size_t(s.out), 6)) {}

  Shape shape;
  Fusion fusion;
  DType stored;
  std::vector<float> x, w, norm_weight, norm_bias, bias, residual;
};

// Rows [first_row, first_row + num_rows) of the case on `backend`.
std::vector<float> RunRows(Backend& backend, const Case& c, const PackedMatrix& weight,
                           int first_row, int num_rows) {
  const size_t in = size_t(c.shape.in), out_width = size_t(c.shape.out);
  const auto slice = [&](const std::vector<float>& from, size_t width) {
    const auto begin = from.begin() + static_cast<ptrdiff_t>(size_t(first_row) * width);
    return std::vector<float>(begin, begin + static_cast<ptrdiff_t>(size_t(num_rows) * width));
  };
  Floats x(backend, slice(c.x, in)), residual(backend, slice(c.residual, out_width));
  Floats norm_weight(backend, c.norm_weight), norm_bias(backend, c.norm_bias);
  Floats bias(backend, c.bias);
  Floats out(backend, std::vector<float>(size_t(num_rows) * out_width, -77.0f));
  NormView norm;
  if (c.fusion.norm)
    norm = {
        .kind = NormKind::kLayerNorm, .weight = norm_weight.Address(), .bias = norm_bias.Address()};
  backend.Linear({.num_rows = num_rows,
                  .x = x.Address(),
                  .norm = norm,
                  .weight = &weight,
                  .bias = c.fusion.bias ? bias.Address() : nullptr,
                  .activation = c.fusion.gelu ? Activation::kGeluTanh : Activation::kNone,
                  .residual = c.fusion.residual ? residual.Address() : nullptr,
                  .out = out.Address()});
  EXPECT_TRUE(backend.Synchronize().ok());
  return out.Values();
}

std::vector<float> RunAll(Backend& backend, const Case& c) {
  const auto weight = Pack(backend, c.w, c.shape.out, c.shape.in, c.stored);
  return RunRows(backend, c, *weight, 0, c.shape.num_rows);
}

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// The expected result in double, and the bound of ops.h for each element.
void Expect(const Case& c, std::vector<double>& want, std::vector<double>& bound) {
  const size_t in = size_t(c.shape.in);
  const std::vector<float> w = KeptAs(c.stored, c.w, c.shape.in);
  for (size_t row = 0; row < size_t(c.shape.num_rows); ++row) {
    std::vector<double> y(&c.x[row * in], &c.x[row * in] + in);
    if (c.fusion.norm) {
      double mean = 0, variance = 0;
      for (const double v : y) mean += v / c.shape.in;
      for (const double v : y) variance += (v - mean) * (v - mean) / c.shape.in;
      for (size_t k = 0; k < in; ++k) {
        y[k] = (y[k] - mean) / std::sqrt(variance + double{1e-5f}) * double{c.norm_weight[k]} +
               double{c.norm_bias[k]};
      }
    }
    double largest = 0;
    for (const double v : y) largest = std::max(largest, std::abs(v));
    for (size_t column = 0; column < size_t(c.shape.out); ++column) {
      double rounding = 0;
      double sum = c.fusion.bias ? double{c.bias[column]} : 0;
      double magnitude = std::abs(sum);
      for (size_t k = 0; k < in; ++k) {
        const double term = y[k] * double{w[column * in + k]};
        sum += term;
        magnitude += std::abs(term);
        if (!IsFloat(c.stored)) rounding += std::abs(double{w[column * in + k]}) * largest;
      }
      if (c.fusion.gelu) sum = GeluTanh(sum);
      const size_t idx = row * size_t(c.shape.out) + column;
      const double residual = c.fusion.residual ? double{c.residual[idx]} : 0;
      want.push_back(sum + residual);
      const double step = c.stored == DType::kI4 ? 1.008 * 0x1p-15 : 0x1p-15;
      bound.push_back(1e-5 * (magnitude + std::abs(residual)) + step * rounding);
    }
  }
}

class LinearTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Stored, LinearTest, ::testing::ValuesIn(kStoredTypes),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

// A norm without bias equals a norm with a bias of zeros.
TEST_P(LinearTest, NormWithoutBias) {
  const Case c({5, 100, 40}, kAll, GetParam());
  for (const std::string& name : BackendNames()) {
    if (IsCuda(name)) continue;  // cuda requires a bias
    const std::unique_ptr<Backend> backend = MakeNamed(name);
    const auto weight = Pack(*backend, c.w, c.shape.out, c.shape.in, c.stored);
    Floats x(*backend, c.x), norm_weight(*backend, c.norm_weight);
    Floats zeros(*backend, std::vector<float>(size_t(c.shape.in)));
    const auto run = [&](const float* norm_bias) {
      Floats out(*backend, std::vector<float>(size_t(c.shape.num_rows * c.shape.out)));
      backend->Linear({.num_rows = c.shape.num_rows,
                       .x = x.Address(),
                       .norm = {.kind = NormKind::kLayerNorm,
                                .weight = norm_weight.Address(),
                                .bias = norm_bias},
                       .weight = weight.get(),
                       .out = out.Address()});
      return out.Values();
    };
    EXPECT_TRUE(SameBits(run(nullptr), run(zeros.Address()))) << name;
  }
}

TEST_P(LinearTest, MatchesTheDefinition) {
  // Tile and panel borders, odd sizes, K above the depth of a block (256).
  constexpr Shape kShapes[] = {{1, 1, 1},    {1, 2, 3},     {2, 17, 31},  {3, 16, 32},
                               {4, 33, 33},  {5, 15, 64},   {6, 64, 65},  {7, 257, 40},
                               {11, 96, 96}, {12, 300, 33}, {13, 31, 95}, {16, 256, 64},
                               {24, 5, 100}, {25, 512, 32}, {48, 64, 96}, {70, 300, 67}};
  for (const auto& backend : BackendsWith(GetParam())) {
    for (const Shape& shape : kShapes) {
      for (const Fusion& fusion : {kPlain, kMlpUp, kMlpDown, kAll}) {
        const Case c(shape, fusion, GetParam());
        std::vector<double> want, bound;
        Expect(c, want, bound);
        EXPECT_TRUE(AllClose(RunAll(*backend, c), want, bound))
            << backend->Describe() << ", " << shape.num_rows << " rows, " << shape.in << " -> "
            << shape.out << ", norm " << fusion.norm << " gelu " << fusion.gelu;
      }
    }
  }
}

TEST_P(LinearTest, MatchesTheDefinitionAtModelShapes) {
  const auto backend = MakeCpu(2);
  for (const Shape& shape : {Shape{1, 768, 2304}, Shape{14, 768, 768}, Shape{3, 3072, 768}}) {
    const Case c(shape, kAll, GetParam());
    std::vector<double> want, bound;
    Expect(c, want, bound);
    EXPECT_TRUE(AllClose(RunAll(*backend, c), want, bound)) << shape.in << " -> " << shape.out;
  }
}

// The shapes reach every layout of cuda's blocks: one or three tiles of columns, several turns of a
// block, chains of all lengths, rows that a block normalises itself or not. Each row has the bits
// that it has alone.
TEST_P(LinearTest, CudaMatchesTheDefinitionInEveryLayout) {
  for (const std::string& name : BackendNames()) {
    if (!IsCuda(name) || !Stores(name, GetParam())) continue;
    const std::unique_ptr<Backend> backend = MakeNamed(name);
    for (const Shape& shape : {Shape{18, 400, 1100}, Shape{5, 192, 2200}, Shape{2, 384, 6400},
                               Shape{4, 3072, 40}, Shape{3, 1101, 24}}) {
      const Case c(shape, kAll, GetParam());
      std::vector<double> want, bound;
      Expect(c, want, bound);
      const std::vector<float> whole = RunAll(*backend, c);
      EXPECT_TRUE(AllClose(whole, want, bound)) << name << " " << shape.in << " -> " << shape.out;
      const auto weight = Pack(*backend, c.w, shape.out, shape.in, c.stored);
      for (const int num_rows : {1, 2, 4, 5, 8, 9}) {
        const int first_row = shape.num_rows - num_rows;
        if (first_row < 0) continue;
        EXPECT_TRUE(SameBits(
            RunRows(*backend, c, *weight, first_row, num_rows),
            std::vector<float>(whole.end() - ptrdiff_t(num_rows) * shape.out, whole.end())))
            << name << " " << shape.in << " -> " << shape.out << ", " << num_rows << " rows";
      }
    }
  }
}

// A mean far from zero, and a first element far from the mean.
TEST_P(LinearTest, NormOfALargeMean) {
  for (const auto& backend : BackendsWith(GetParam())) {
    for (const float mean : {-3000.0f, 100000.0f}) {
      Case c({5, 768, 24}, kAll, GetParam());
      for (float& x : c.x) x += mean;
      for (size_t row = 0; row < 5; row += 2) c.x[row * 768] = 2 * mean;
      std::vector<double> want, bound;
      Expect(c, want, bound);
      EXPECT_TRUE(AllClose(RunAll(*backend, c), want, bound)) << backend->Describe() << " " << mean;
    }
  }
}

TEST_P(LinearTest, BitsDependOnlyOnTheRow) {
  const Case c({400, 300, 70}, kAll, GetParam());
  const auto whole_backend = MakeCpu(1);
  const std::vector<float> whole = RunAll(*whole_backend, c);
  const auto rows_of_whole = [&](int first_row, int num_rows) {
    const auto begin = whole.begin() + first_row * c.shape.out;
    return std::vector<float>(begin, begin + num_rows * c.shape.out);
  };
  for (const int num_threads : {1, 2, 3, 8, 16}) {
    const auto backend = MakeCpu(num_threads);
    const auto weight = Pack(*backend, c.w, c.shape.out, c.shape.in, c.stored);
    for (int num_rows = 1; num_rows <= 70; ++num_rows) {
      const int first_row = num_rows * 37 % (c.shape.num_rows - num_rows);
      ASSERT_TRUE(SameBits(RunRows(*backend, c, *weight, first_row, num_rows),
                           rows_of_whole(first_row, num_rows)))
          << num_rows << " rows from " << first_row << ", " << num_threads << " threads";
    }
    ASSERT_TRUE(SameBits(RunRows(*backend, c, *weight, 0, 400), whole)) << num_threads;
  }
}

TEST_P(LinearTest, BitsDoNotDependOnTheInstructionSet) {
  for (const Fusion& fusion : {kPlain, kAll}) {
    for (const int num_rows : {1, 2, 3, 29}) {
      const Case c({num_rows, 300, 170}, fusion, GetParam());
      const auto best_backend = MakeCpu(1);
      const std::vector<float> best = RunAll(*best_backend, c);
      for (const std::string& name : InstructionSets()) {
        EXPECT_TRUE(SameBits(RunAll(*MakeCpu(2, name), c), best)) << name << " " << num_rows;
      }
    }
  }
}

TEST_P(LinearTest, TransposedWeightsAreTheSameMatrix) {
  const Case c({5, 77, 45}, kPlain, GetParam());
  std::vector<float> conv1d(c.w.size());
  for (size_t row = 0; row < 45; ++row) {
    for (size_t k = 0; k < 77; ++k) conv1d[k * 45 + row] = c.w[row * 77 + k];
  }
  for (const auto& backend : BackendsWith(GetParam())) {
    const auto weight = Pack(*backend, conv1d, 45, 77, c.stored, /*transposed=*/true);
    EXPECT_EQ(weight->NumRows(), 45);
    EXPECT_EQ(weight->NumCols(), 77);
    EXPECT_EQ(weight->StoredType(), c.stored);
    EXPECT_TRUE(SameBits(RunRows(*backend, c, *weight, 0, 5), RunAll(*backend, c)))
        << backend->Describe();
  }
}

TEST_P(LinearTest, NanStaysInItsRow) {
  constexpr int kPoisoned = 4;
  const Case clean({14, 100, 40}, kAll, GetParam());
  Case poisoned = clean;
  poisoned.x[kPoisoned * 100 + 99] = std::numeric_limits<float>::quiet_NaN();
  for (const auto& backend : BackendsWith(GetParam())) {
    const std::vector<float> want = RunAll(*backend, clean), got = RunAll(*backend, poisoned);
    for (int row = 0; row < 14; ++row) {
      for (int column = 0; column < 40; ++column) {
        const size_t idx = size_t(row * 40 + column);
        if (row == kPoisoned) {
          EXPECT_TRUE(std::isnan(got[idx])) << backend->Describe() << " column " << column;
        } else {
          EXPECT_EQ(got[idx], want[idx]) << backend->Describe() << " row " << row;
        }
      }
    }
  }
}

TEST_P(LinearTest, ResidualMayBeTheOutput) {
  const Case c({9, 50, 47}, kMlpDown, GetParam());
  for (const auto& backend : BackendsWith(GetParam())) {
    const auto weight = Pack(*backend, c.w, c.shape.out, c.shape.in, c.stored);
    Floats x(*backend, c.x), bias(*backend, c.bias), stream(*backend, c.residual);
    backend->Linear({.num_rows = 9,
                     .x = x.Address(),
                     .norm = {},
                     .weight = weight.get(),
                     .bias = bias.Address(),
                     .residual = stream.Address(),
                     .out = stream.Address()});
    EXPECT_TRUE(SameBits(stream.Values(), RunAll(*backend, c))) << backend->Describe();
  }
}

// int8 weights: each row of x is rounded to 16 bits relative to its own magnitude.
TEST(LinearInt8Test, RowsOfAnyMagnitudeKeepTheirPrecision) {
  constexpr int kIn = 100;
  Case c({4, kIn, 40}, kPlain, DType::kI8);
  constexpr float kMagnitudes[] = {1e-30f, 1.0f, 1e30f, 0.0f};
  for (size_t i = 0; i < c.x.size(); ++i) c.x[i] *= kMagnitudes[i / kIn];
  c.x[1 * kIn] = -0x1.fffffep3f;  // the largest of its row; it rounds up to a power of two
  std::vector<double> want, bound;
  Expect(c, want, bound);
  for (size_t i = 0; i < 40; ++i) bound[3 * 40 + i] = std::numeric_limits<double>::min();
  for (const auto& backend : AllBackends()) {
    EXPECT_TRUE(AllClose(RunAll(*backend, c), want, bound)) << backend->Describe();
  }
}

// Rows of x at both sides of the limit of quads (32512 steps), of any magnitude, with the largest
// and smallest numbers of each byte; in tiles of few rows and of many.
TEST(LinearInt4Test, RowsOfAnyMagnitudeKeepTheirPrecision) {
  constexpr int kIn = 100, kRows = 14;
  Case c({kRows, kIn, 40}, kPlain, DType::kI4);
  constexpr float kLargest[] = {32511.0f, 32512.0f,        32639.0f, 32640.0f, 32767.0f,
                                32768.0f, 0x1.fffffep127f, 1e-30f,   1e30f};
  for (int row = 0; row < kRows; ++row) {
    const float largest = kLargest[row % 9];
    for (int k = 0; k < kIn; ++k) {
      const float share = float(k * 677 % 32768) / 32768;
      c.x[size_t(row * kIn + k)] = k == row ? -largest : (k % 2 == 0 ? share : -share) * largest;
    }
  }
  for (float& weight : c.w) weight *= 1e-3f;  // sums stay finite
  std::vector<double> want, bound;
  Expect(c, want, bound);
  for (const auto& backend : BackendsWith(DType::kI4)) {
    const auto weight = Pack(*backend, c.w, 40, kIn, DType::kI4);
    const std::vector<float> whole = RunRows(*backend, c, *weight, 0, kRows);
    EXPECT_TRUE(AllClose(whole, want, bound)) << backend->Describe();
    for (int row = 0; row < kRows; ++row) {
      const std::vector<float> alone(whole.begin() + row * 40, whole.begin() + (row + 1) * 40);
      EXPECT_TRUE(SameBits(RunRows(*backend, c, *weight, row, 1), alone))
          << backend->Describe() << " row " << row;
    }
  }
}

// Depths at the borders of a block (8), a group (32) and a block of K (256).
TEST(LinearInt4Test, BitsAtEveryDepthAndNumberOfRows) {
  for (const int depth : {1, 2, 7, 8, 9, 31, 32, 33, 40, 63, 65, 255, 257, 289}) {
    const Case c({27, depth, 35}, kPlain, DType::kI4);
    const auto whole_backend = MakeCpu(1);
    const std::vector<float> whole = RunAll(*whole_backend, c);
    std::vector<double> want, bound;
    Expect(c, want, bound);
    EXPECT_TRUE(AllClose(whole, want, bound)) << depth;
    for (const std::string& name : InstructionSets()) {
      const auto backend = MakeCpu(2, name);
      const auto weight = Pack(*backend, c.w, 35, depth, DType::kI4);
      for (const int num_rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 27}) {
        const std::vector<float> rows(whole.end() - num_rows * 35, whole.end());
        ASSERT_TRUE(SameBits(RunRows(*backend, c, *weight, 27 - num_rows, num_rows), rows))
            << name << ", depth " << depth << ", " << num_rows << " rows";
      }
    }
  }
}

TEST(LinearPackTest, ConvertsWeightsToTheStoredType) {
  constexpr int kCols = 70;
  const std::vector<float> values = RandomFloats(33 * kCols, 9);
  for (const DType given : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<uint32_t> elements(values.size());
    for (size_t i = 0; i < values.size(); ++i) StoreElement(values[i], elements.data(), given, i);
    const std::vector<float> row(values.end() - kCols, values.end());
    for (const DType stored : kStoredTypes) {
      const std::vector<float> want = KeptAs(stored, KeptAs(given, row, kCols), kCols);
      for (const auto& backend : BackendsWith(stored)) {
        auto table = backend->Pack(
            {.elements = elements.data(), .dtype = given, .num_rows = 33, .num_cols = kCols},
            stored);
        ASSERT_TRUE(table.ok());
        Floats out(*backend, std::vector<float>(kCols));
        const int32_t id = 32;
        backend->Embed({.ids = {&id, 1}, .table = table->get(), .out = out.Address()});
        EXPECT_TRUE(SameBits(out.Values(), want))
            << backend->Describe() << " " << NameOf(given) << " as " << NameOf(stored);
      }
    }
  }
}

TEST(LinearPackTest, RejectsAWeightThatOverflows) {
  const std::vector<float> w = {1.0f, -70000.0f};
  const auto backend = MakeCpu(1);
  const MatrixView view = {.elements = w.data(), .num_rows = 1, .num_cols = 2};
  EXPECT_EQ(backend->Pack(view, DType::kF16).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(backend->Pack(view, DType::kBF16).ok());
  EXPECT_TRUE(backend->Pack(view, DType::kF32).ok());
  EXPECT_TRUE(backend->Pack(view, DType::kI8).ok());
  EXPECT_TRUE(backend->Pack(view, DType::kI4).ok());
}

TEST(LinearPackTest, RejectsNonFiniteWeightsAsIntegers) {
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> w(3 * 100, 1.0f);
    w[250] = poison;
    const MatrixView view = {.elements = w.data(), .num_rows = 3, .num_cols = 100};
    for (const DType stored : {DType::kI8, DType::kI4}) {
      for (const auto& backend : BackendsWith(stored)) {
        const absl::Status status = backend->Pack(view, stored).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << backend->Describe();
        EXPECT_NE(std::string(status.message()).find(NameOf(stored)), std::string::npos) << status;
      }
    }
  }
}

TEST(LinearPackTest, RejectsIntegersWithoutScales) {
  const std::vector<int8_t> w(64, 1);
  for (const DType given : {DType::kI8, DType::kI4}) {
    const MatrixView view = {.elements = w.data(), .dtype = given, .num_rows = 1, .num_cols = 64};
    for (const auto& backend : AllBackends()) {
      for (const DType stored : kStoredTypes) {
        const absl::Status status = backend->Pack(view, stored).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << backend->Describe();
        EXPECT_NE(status.message().find("scales"), std::string::npos) << status;
      }
    }
  }
}

// Also groups that QuantizeInt4Group would not make; columns to the middle of a byte and of a
// block.
TEST(LinearPackTest, Int4WithScalesIsKept) {
  constexpr int kRows = 35, kCols = 77, kGroups = 3;
  std::vector<uint8_t> codes(kRows * Int4RowBytes(kCols));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i * 37 % 251);
  std::vector<uint16_t> scales(kRows * kGroups);
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = Bf16FromFloat((i % 2 == 0 ? 0.01f : -0.01f) * float(i));
  }
  const MatrixView view = {.elements = codes.data(),
                           .dtype = DType::kI4,
                           .num_rows = kRows,
                           .num_cols = kCols,
                           .scales = scales.data()};
  const int32_t id = 33;
  std::vector<float> want(kCols);
  for (int k = 0; k < kCols; ++k) {
    const uint8_t byte = codes[size_t(id) * Int4RowBytes(kCols) + size_t(k / 2)];
    const int8_t value = kInt4Values[size_t(k % 2 == 0 ? byte & 15 : byte >> 4)];
    want[size_t(k)] = float(value) * FloatFromBf16(scales[size_t(id * kGroups + k / 32)]);
  }
  for (const DType stored : {DType::kI4, DType::kF32}) {
    for (const auto& backend : BackendsWith(stored)) {
      const auto table = backend->Pack(view, stored);
      ASSERT_TRUE(table.ok()) << table.status();
      Floats out(*backend, std::vector<float>(kCols));
      backend->Embed({.ids = {&id, 1}, .table = table->get(), .out = out.Address()});
      EXPECT_TRUE(SameBits(out.Values(), want)) << backend->Describe() << " " << NameOf(stored);
      MatrixView transposed = view;
      transposed.transposed = true;
      EXPECT_FALSE(backend->Pack(transposed, stored).ok()) << backend->Describe();
    }
  }
}

TEST(LinearPackTest, CudaRefusesInt4ByName) {
  const std::vector<float> w(64, 1.0f);
  const absl::Status status =
      MakeNamed("CUDA_EMULATED")
          ->Pack({.elements = w.data(), .num_rows = 1, .num_cols = 64}, DType::kI4)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("int4"), std::string::npos) << status;
  EXPECT_NE(status.message().find("--dtype int8"), std::string::npos) << status;
}

// Also groups that QuantizeGroup would not make, whose largest element is not 127.
TEST(LinearPackTest, Int8WithScalesIsKept) {
  constexpr int kRows = 17, kCols = 70, kGroups = 2;
  std::vector<int8_t> steps(kRows * kCols);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = int8_t(int(i * 37 % 101) - 50);
  std::vector<uint16_t> scales(kRows * kGroups);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = Bf16FromFloat(0.01f * float(i));
  const MatrixView view = {.elements = steps.data(),
                           .dtype = DType::kI8,
                           .num_rows = kRows,
                           .num_cols = kCols,
                           .scales = scales.data()};
  const int32_t id = 16;
  std::vector<float> want(kCols);
  for (int k = 0; k < kCols; ++k) {
    const float scale = FloatFromBf16(scales[size_t(id * kGroups + k / kGroupCols)]);
    want[size_t(k)] = float(steps[size_t(id * kCols + k)]) * scale;
  }
  for (const auto& backend : AllBackends()) {
    for (const DType stored : {DType::kI8, DType::kF32}) {
      const auto table = backend->Pack(view, stored);
      ASSERT_TRUE(table.ok()) << table.status();
      Floats out(*backend, std::vector<float>(kCols));
      backend->Embed({.ids = {&id, 1}, .table = table->get(), .out = out.Address()});
      EXPECT_TRUE(SameBits(out.Values(), want)) << backend->Describe() << " " << NameOf(stored);
    }
    MatrixView transposed = view;
    transposed.transposed = true;
    EXPECT_FALSE(backend->Pack(transposed, DType::kI8).ok()) << backend->Describe();
  }
}

// One byte per element and two per group: decode of small batches is bound by these bytes.
TEST(LinearPackTest, Int8TakesAByteAndItsScales) {
  const auto matrix = Pack(*MakeCpu(1), std::vector<float>(96 * 768, 1.0f), 96, 768, DType::kI8);
  EXPECT_EQ(matrix->NumBytes(), size_t{96 * (768 + 768 / kGroupCols * 2)});
}

// 4.5 bits an element.
TEST(LinearPackTest, Int4TakesHalfAByteAndItsScales) {
  const auto matrix = Pack(*MakeCpu(1), std::vector<float>(96 * 768, 1.0f), 96, 768, DType::kI4);
  EXPECT_EQ(matrix->NumBytes(), size_t{96 * (768 / 2 + 768 / kInt4GroupCols * 2)});
}

}  // namespace
}  // namespace lssar
