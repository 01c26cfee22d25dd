// GEMMs by tiles: the bits of every tile and cluster, and the choice among them.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/emulation/emulated_backend.h"
#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

struct Tile {
  CudaGemmTile tile = CudaGemmTile::k16x8;
  int cluster_blocks = 1;
};

CudaKernels kernels;  // of the emulation
Tile forced;

int SplitForForcedTile(const CudaSplitArgs& args, void* stream) {
  CudaSplitArgs for_tile = args;
  for_tile.is_tiled = forced.tile != CudaGemmTile::k16x8;
  return kernels.split_rows(for_tile, stream);
}

int LinearByForcedTile(const CudaLinearArgs& args, void* stream) {
  CudaLinearArgs with_tile = args;
  with_tile.tile = forced.tile;
  with_tile.cluster_blocks = forced.cluster_blocks;
  return kernels.linear(with_tile, stream);
}

// The emulated backend, with the tile of `forced` in every GEMM of more rows than are fused.
std::unique_ptr<Backend> MakeForced() {
  CudaBackendParts parts = EmulatedParts();
  kernels = parts.kernels;
  parts.kernels.split_rows = &SplitForForcedTile;
  parts.kernels.linear = &LinearByForcedTile;
  return *MakeCudaBackend(std::move(parts), 0);
}

constexpr Tile kTiles[] = {{CudaGemmTile::k64x64, 1},
                           {CudaGemmTile::k64x64, kGemmChains},
                           {CudaGemmTile::k128x128, 1},
                           {CudaGemmTile::k128x128, kGemmChains}};

class GemmTileTest : public testing::TestWithParam<DType> {
 protected:
  ~GemmTileTest() override { emulation::SetSchedule(0); }
};

// Row and column borders inside tiles; K of one group, whose other chains are empty, and of more
// stages than a pipeline holds.
TEST_P(GemmTileTest, BitsAreThoseOfAFewRows) {
  const std::unique_ptr<Backend> backend = MakeForced();
  struct Shape {
    int rows, in, out;
  };
  for (const Shape& shape : {Shape{9, 40, 65}, Shape{130, 700, 140}}) {
    const auto elements = [&](int width) { return size_t(shape.rows) * size_t(width); };
    const auto weight = Pack(*backend, RandomFloats(size_t(shape.out) * size_t(shape.in), 2, 0.1f),
                             shape.out, shape.in, GetParam());
    Floats x(*backend, RandomFloats(elements(shape.in), 1));
    Floats bias(*backend, RandomFloats(size_t(shape.out), 3));
    Floats multiply(*backend, RandomFloats(elements(shape.out), 4));
    Floats residual(*backend, RandomFloats(elements(shape.out), 5));
    const auto run = [&](const Tile& tile) {
      forced = tile;
      Floats out(*backend, std::vector<float>(elements(shape.out), -77.0f));
      backend->Linear({.num_rows = shape.rows,
                       .x = x.Address(),
                       .norm = {},
                       .weight = weight.get(),
                       .bias = bias.Address(),
                       .activation = Activation::kGeluTanh,
                       .multiply = multiply.Address(),
                       .scale = 0.7f,
                       .residual = residual.Address(),
                       .out = out.Address()});
      EXPECT_TRUE(backend->Synchronize().ok());
      return out.Values();
    };
    emulation::SetSchedule(0);
    const std::vector<float> want = run({});
    for (const Tile& tile : kTiles) {
      for (const uint64_t seed : {0, 1}) {
        // Random schedules take long: the small shape is enough for them.
        if (seed != 0 && shape.rows > 100) continue;
        emulation::SetSchedule(seed);
        EXPECT_TRUE(SameBits(run(tile), want))
            << shape.rows << " rows, tile " << int(tile.tile) << ", " << tile.cluster_blocks
            << " blocks a cluster, seed " << seed;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, GemmTileTest,
                         testing::Values(DType::kF16, DType::kBF16, DType::kI8),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

// "Gpu" only where there is one.
std::vector<std::string> Devices() {
  std::vector<std::string> devices = {"Emulated"};
  if (MakeBackend({.name = "cuda"}).ok()) devices.emplace_back("Gpu");
  return devices;
}

class ChosenTileTest : public testing::TestWithParam<std::string> {};

// Many rows by the tiles that the backend chooses, and their first and last rows alone.
TEST_P(ChosenTileTest, BitsAreThoseOfAFewRows) {
  const bool on_gpu = GetParam() == "Gpu";
  const std::unique_ptr<Backend> backend = MakeNamed(on_gpu ? "CUDA" : "CUDA_EMULATED");
  struct Shape {
    int rows, in, out;
  };
  const std::vector<Shape> shapes =
      on_gpu ? std::vector<Shape>{{60, 768, 2304}, {1100, 768, 3072}, {1100, 3072, 768}}
             : std::vector<Shape>{{40, 130, 70}, {70, 130, 150}};
  for (const Shape& shape : shapes) {
    const size_t in = size_t(shape.in), out_width = size_t(shape.out);
    const std::vector<float> values = RandomFloats(size_t(shape.rows) * in, 1);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      const auto weight =
          Pack(*backend, RandomFloats(out_width * in, 2, 0.1f), shape.out, shape.in, dtype);
      const auto run = [&](int first, int num_rows) {
        const float* const begin = &values[size_t(first) * in];
        Floats x(*backend, {begin, begin + size_t(num_rows) * in});
        Floats out(*backend, std::vector<float>(size_t(num_rows) * out_width));
        backend->Linear({.num_rows = num_rows,
                         .x = x.Address(),
                         .norm = {.kind = NormKind::kRmsNorm},
                         .weight = weight.get(),
                         .out = out.Address()});
        EXPECT_TRUE(backend->Synchronize().ok());
        return out.Values();
      };
      const std::vector<float> all = run(0, shape.rows);
      for (const int num_rows : {1, kMaxFusedRows, kMaxRowsWithoutTiles}) {
        const size_t count = size_t(num_rows) * out_width;
        EXPECT_TRUE(SameBits(run(0, num_rows), {all.begin(), all.begin() + int(count)}))
            << NameOf(dtype) << ", the first " << num_rows << " of " << shape.rows;
        EXPECT_TRUE(
            SameBits(run(shape.rows - num_rows, num_rows), {all.end() - int(count), all.end()}))
            << NameOf(dtype) << ", the last " << num_rows << " of " << shape.rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ChosenTileTest, testing::ValuesIn(Devices()),
                         [](const auto& test) { return test.param; });

TEST(ChooseTileTest, TilesFillTheDevice) {
  struct Case {
    int compute_capability, num_rows, num_cols;
    DType dtype;
    Tile want;
  };
  const Case cases[] = {
      {90, 8, 768, DType::kF16, {}},
      {90, 1024, 768, DType::kF32, {}},
      {90, 9, 768, DType::kF16, {CudaGemmTile::k64x64, 4}},
      {90, 64, 3072, DType::kI8, {CudaGemmTile::k64x64, 4}},
      {90, 64, 50257, DType::kF16, {CudaGemmTile::k64x64, 1}},
      {90, 128, 768, DType::kF16, {CudaGemmTile::k64x64, 4}},
      {90, 1024, 768, DType::kF16, {CudaGemmTile::k128x128, 4}},
      {90, 1024, 3072, DType::kBF16, {CudaGemmTile::k128x128, 1}},
      {80, 64, 768, DType::kF16, {CudaGemmTile::k64x64, 1}},
      {80, 1024, 768, DType::kF16, {CudaGemmTile::k64x64, 1}},
      {80, 4096, 3072, DType::kF16, {CudaGemmTile::k128x128, 1}},
  };
  for (const Case& c : cases) {
    CudaLinearArgs gemm;
    gemm.num_rows = c.num_rows;
    gemm.weight.dtype = c.dtype;
    gemm.weight.num_rows = c.num_cols;
    CudaDevice device;
    device.compute_capability = c.compute_capability;
    device.num_multiprocessors = 132;
    ChooseTile(device, &gemm);
    EXPECT_EQ(gemm.tile, c.want.tile) << c.num_rows << " x " << c.num_cols;
    EXPECT_EQ(gemm.cluster_blocks, c.want.cluster_blocks) << c.num_rows << " x " << c.num_cols;
  }
}

}  // namespace
}  // namespace lssar
