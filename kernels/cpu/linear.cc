#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/layer_norm.h"
#include "kernels/cpu/packed_matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// Rows of x that a task takes past a panel, so that their part of x stays in L2 from one panel to
// the next while weights are widened and read from memory only once per so many rows.
constexpr size_t kBlockRows = 192;

// Steps of k between two loads of the sums: the widened weights (32 KiB) and a tile of x fit L1.
constexpr size_t kBlockSteps = 256;
static_assert(kBlockSteps % kGroupCols == 0);  // a block starts with its scales

// A narrow product on many threads cuts its rows into more blocks, until each thread has this many
// pairs of block and panel, or blocks have two tiles left.
constexpr size_t kMinPairsPerThread = 4;

// Tasks that each thread may expect. A task is a run of panels, so that the prefetch at the end of
// one panel is the start of the next; the last task of all keeps one thread alone.
constexpr size_t kTasksPerThread = 16;

struct Product {
  const LinearArgs& args;
  const int32_t* row_ids;  // null: row r of x is x[r]
  const CpuMatrix& weight;
  WeightFormat format;
  size_t num_steps;  // in-features
  size_t num_tiles;
  const float* x;  // [tile][k][row of the tile]
  Scratch& scratch;

  // Rows are dealt to tiles evenly: 13 rows are a tile of 6 and one of 7.
  size_t FirstRow(size_t tile) const {
    return tile * static_cast<size_t>(args.num_rows) / num_tiles;
  }
  size_t NumRows(size_t tile) const { return FirstRow(tile + 1) - FirstRow(tile); }

  const std::byte* Panel(size_t panel_idx) const {
    return static_cast<const std::byte*>(weight.Panel(static_cast<int>(panel_idx)));
  }
  // Bytes of a panel from one k to the next, with its share of scales, rounded up: for prefetching.
  size_t StepBytes() const { return (weight.PanelBytes() + num_steps - 1) / num_steps; }
};

// Rows of tile `tile`, normalised, interleaved as the tile kernels read them.
void PackTile(const Product& product, size_t tile, int thread_idx, float* packed) {
  const LinearArgs& args = product.args;
  const size_t first_row = product.FirstRow(tile);
  const size_t num_rows = product.NumRows(tile);
  const size_t width = product.num_steps;
  const float* rows[kMaxTileRows];
  float* normed = args.norm.weight == nullptr
                      ? nullptr
                      : product.scratch.OfThread<float>(thread_idx, num_rows * width);
  for (size_t r = 0; r < num_rows; ++r) {
    const size_t row = product.row_ids == nullptr
                           ? first_row + r
                           : static_cast<size_t>(product.row_ids[first_row + r]);
    rows[r] = args.x + row * width;
    if (normed != nullptr) {
      LayerNormRow(rows[r], static_cast<int>(width), args.norm, normed + r * width);
      rows[r] = normed + r * width;
    }
  }
  kInterleaveFunctions[num_rows](rows, width, packed + first_row * width);
}

// One row of a tile's sums to kPanelRows elements of out: bias, activation, residual.
// Shapes    every array [kPanelRows]; bias and residual null or not
HWY_INLINE void FinishColumns(const float* sums, const float* bias, Activation activation,
                              const float* residual, float* out) {
  const FloatTag d;
  for (size_t c = 0; c < kPanelRows; c += kLanes) {
    FloatVec y = hn::Load(d, sums + c);
    if (bias != nullptr) y = hn::Add(y, hn::LoadU(d, bias + c));
    if (activation == Activation::kGeluTanh) y = GeluTanh(d, y);
    if (residual != nullptr) y = hn::Add(y, hn::LoadU(d, residual + c));
    hn::StoreU(y, d, out + c);
  }
}

// The same for the last panel, of which the matrix has only `count` columns.
void FinishLastColumns(const float* sums, const float* bias, Activation activation,
                       const float* residual, size_t count, float* out) {
  float whole_bias[kPanelRows] = {}, whole_residual[kPanelRows] = {}, whole[kPanelRows];
  if (bias != nullptr) std::memcpy(whole_bias, bias, count * sizeof(float));
  if (residual != nullptr) std::memcpy(whole_residual, residual, count * sizeof(float));
  FinishColumns(sums, bias == nullptr ? nullptr : whole_bias, activation,
                residual == nullptr ? nullptr : whole_residual, whole);
  std::memcpy(out, whole, count * sizeof(float));
}

// Where a tile's sums go: rows [first_row, first_row + num_rows) of out, columns of one panel.
struct OutTile {
  const LinearArgs& args;
  size_t panel_idx;
  size_t first_row;
  size_t num_rows;

  size_t NumColumns() const { return static_cast<size_t>(args.weight->NumRows()); }
  size_t FirstColumn() const { return panel_idx * size_t{kPanelRows}; }
  size_t Index(size_t r) const { return (first_row + r) * NumColumns() + FirstColumn(); }
};

// Each row of a tile lies on a page of its own, so the lines are asked for before the sums are
// ready: 1 to 2% of a product of 512 rows.
void PrefetchOut(const OutTile& tile) {
  constexpr size_t kLineFloats = 64 / sizeof(float);
  for (size_t r = 0; r < tile.num_rows; ++r) {
    const size_t idx = tile.Index(r);
    for (size_t c = 0; c < kPanelRows; c += kLineFloats) {
      __builtin_prefetch(tile.args.out + idx + c, 1);
      if (tile.args.residual != nullptr) hwy::Prefetch(tile.args.residual + idx + c);
    }
  }
}

void FinishTile(const OutTile& tile, const float* sums) {
  const LinearArgs& args = tile.args;
  const size_t count = std::min(size_t{kPanelRows}, tile.NumColumns() - tile.FirstColumn());
  const float* bias = args.bias == nullptr ? nullptr : args.bias + tile.FirstColumn();
  for (size_t r = 0; r < tile.num_rows; ++r, sums += kPanelRows) {
    const size_t idx = tile.Index(r);
    const float* residual = args.residual == nullptr ? nullptr : args.residual + idx;
    if (count == kPanelRows) {
      FinishColumns(sums, bias, args.activation, residual, args.out + idx);
    } else {
      FinishLastColumns(sums, bias, args.activation, residual, count, args.out + idx);
    }
  }
}

// One tile times one panel: the weights are widened on their way to the multipliers.
void MultiplyOne(const Product& product, size_t panel_idx, size_t tile, int thread_idx) {
  const size_t row = product.FirstRow(tile);
  const size_t num_rows = product.NumRows(tile);
  float* sums = product.scratch.OfThread<float>(thread_idx, num_rows * size_t{kPanelRows});
  const std::byte* panel = product.Panel(panel_idx);
  (*product.format.tiles)[num_rows](panel, product.x + row * product.num_steps, product.num_steps,
                                    false, {panel + kPrefetchBytes, product.StepBytes()}, sums);
  FinishTile({product.args, panel_idx, row, num_rows}, sums);
}

// All rows, which are few, times two panels.
void MultiplyBoth(const Product& product, size_t panel_idx, PairFunction multiply, int thread_idx) {
  const size_t num_rows = static_cast<size_t>(product.args.num_rows);
  const size_t panel_sums = num_rows * size_t{kPanelRows};
  float* sums = product.scratch.OfThread<float>(thread_idx, 2 * panel_sums);
  multiply(product.Panel(panel_idx), product.weight.PanelBytes(), product.x, product.num_steps,
           sums);
  FinishTile({product.args, panel_idx, 0, num_rows}, sums);
  FinishTile({product.args, panel_idx + 1, 0, num_rows}, sums + panel_sums);
}

// Tiles [first_tile, end_tile) times one panel: a block of its weights is widened once for all.
void MultiplyMany(const Product& product, size_t panel_idx, size_t first_tile, size_t end_tile,
                  int thread_idx) {
  const size_t num_steps = product.num_steps;
  const size_t first_row = product.FirstRow(first_tile);
  const size_t num_sums = (product.FirstRow(end_tile) - first_row) * size_t{kPanelRows};
  float* sums =
      product.scratch.OfThread<float>(thread_idx, num_sums + kBlockSteps * size_t{kPanelRows});
  float* wide = sums + num_sums;
  const DType stored_type = product.weight.StoredType();
  for (size_t k = 0; k < num_steps; k += kBlockSteps) {
    const size_t count = std::min(kBlockSteps, num_steps - k);
    const bool is_last = k + count == num_steps;
    const std::byte* stored =
        product.Panel(panel_idx) + StepOffset(stored_type, static_cast<int>(k));
    const void* weights = stored;
    if (product.format.widen != nullptr) {
      product.format.widen(stored, count, wide);
      weights = wide;
    }
    for (size_t tile = first_tile; tile < end_tile; ++tile) {
      const size_t row = product.FirstRow(tile);
      const size_t num_rows = product.NumRows(tile);
      const float* x = product.x + row * num_steps + k * num_rows;
      float* tile_sums = sums + (row - first_row) * size_t{kPanelRows};
      const OutTile out = {product.args, panel_idx, row, num_rows};
      // Behind the first tile the next weights come in, behind the others the next tile's x.
      const Upcoming upcoming =
          tile == first_tile
              ? Upcoming{stored + count * product.StepBytes(), product.StepBytes()}
              : Upcoming{reinterpret_cast<const std::byte*>(x + num_rows * num_steps),
                         num_rows * sizeof(float)};
      if (is_last) PrefetchOut(out);
      kTileFunctions<F32Weights>[num_rows](weights, x, count, k > 0, upcoming, tile_sums);
      if (is_last) FinishTile(out, tile_sums);
    }
  }
}

void LinearOfTarget(const LinearArgs& args, const int32_t* row_ids, ThreadPool& pool,
                    Scratch& scratch) {
  const auto& weight = static_cast<const CpuMatrix&>(*args.weight);
  const size_t num_rows = static_cast<size_t>(args.num_rows);
  Product product{.args = args,
                  .row_ids = row_ids,
                  .weight = weight,
                  .format = FormatOf(weight.StoredType()),
                  .num_steps = static_cast<size_t>(weight.NumCols()),
                  .num_tiles = (num_rows + kMaxTileRows - 1) / kMaxTileRows,
                  .x = args.x,
                  .scratch = scratch};
  const bool as_it_is = num_rows == 1 && row_ids == nullptr && args.norm.weight == nullptr;
  if (!as_it_is) {
    float* packed = scratch.Shared<float>(num_rows * product.num_steps);
    product.x = packed;
    pool.ParallelFor(static_cast<int64_t>(product.num_tiles), [&](int64_t tile, int thread_idx) {
      PackTile(product, static_cast<size_t>(tile), thread_idx, packed);
    });
  }

  const size_t num_panels = static_cast<size_t>(weight.NumPanels());
  const size_t num_threads = static_cast<size_t>(pool.NumThreads());
  const size_t wanted_blocks = (kMinPairsPerThread * num_threads + num_panels - 1) / num_panels;
  const size_t num_blocks = std::max((num_rows + kBlockRows - 1) / kBlockRows,
                                     std::min(wanted_blocks, product.num_tiles / 2));
  const PairFunction pair = PairFunctionOf(weight.StoredType(), num_rows);
  size_t task_panels =
      std::max(size_t{1}, num_blocks * num_panels / (kTasksPerThread * num_threads));
  if (pair != nullptr) task_panels += task_panels % 2;
  const size_t tasks_per_block = (num_panels + task_panels - 1) / task_panels;
  pool.ParallelFor(
      static_cast<int64_t>(num_blocks * tasks_per_block), [&](int64_t task_idx, int thread_idx) {
        const size_t block = static_cast<size_t>(task_idx) / tasks_per_block;
        const size_t first_panel = static_cast<size_t>(task_idx) % tasks_per_block * task_panels;
        const size_t end_panel = std::min(num_panels, first_panel + task_panels);
        const size_t first_tile = block * product.num_tiles / num_blocks;
        const size_t end_tile = (block + 1) * product.num_tiles / num_blocks;
        for (size_t panel = first_panel; panel < end_panel; ++panel) {
          if (pair != nullptr && panel + 1 < end_panel) {
            MultiplyBoth(product, panel++, pair, thread_idx);
          } else if (end_tile - first_tile == 1) {
            MultiplyOne(product, panel, first_tile, thread_idx);
          } else {
            MultiplyMany(product, panel, first_tile, end_tile, thread_idx);
          }
        }
      });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(LinearOfTarget);

namespace {

void Run(const LinearArgs& args, const int32_t* row_ids, ThreadPool& pool, Scratch& scratch) {
  LSSAR_CHECK(args.num_rows >= 0 && args.weight != nullptr);
  if (args.num_rows == 0) return;
  LSSAR_CHECK(args.x != nullptr && args.out != nullptr && args.x != args.out);
  LSSAR_CHECK((args.norm.weight == nullptr) == (args.norm.bias == nullptr));
  HWY_DYNAMIC_DISPATCH(LinearOfTarget)(args, row_ids, pool, scratch);
}

}  // namespace

void LinearOnCpu(const LinearArgs& args, ThreadPool& pool, Scratch& scratch) {
  Run(args, nullptr, pool, scratch);
}

void GatheredLinearOnCpu(const LinearArgs& args, std::span<const int32_t> row_ids, ThreadPool& pool,
                         Scratch& scratch) {
  LSSAR_CHECK(row_ids.size() == static_cast<size_t>(args.num_rows));
  Run(args, row_ids.data(), pool, scratch);
}

}  // namespace lssar
#endif  // HWY_ONCE
