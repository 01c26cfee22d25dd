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
#include "kernels/cpu/linear_int8-inl.h"
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

// What the product needs to know of a stored type. A new format is a new row here.
struct WeightFormat {
  const TileFunctions* tiles;  // the weights as they are stored
  // To fp32, which kTileFunctions<float> then take; null where that gains nothing.
  void (*widen)(const void* weights, size_t num_k, float* out);
  bool is_int8 = false;
};

HWY_INLINE WeightFormat FormatOf(DType stored) {
  switch (stored) {
    case DType::kF32: return {&kTileFunctions<float>, nullptr};
    case DType::kF16: return {&kTileFunctions<hwy::float16_t>, &WidenPanel<hwy::float16_t>};
    case DType::kBF16: return {&kTileFunctions<hwy::bfloat16_t>, &WidenPanel<hwy::bfloat16_t>};
    case DType::kI8: return {&kInt8TileFunctions, nullptr, true};
  }
  LSSAR_CHECK(false);
}

// Where a tile's sums go: rows [first_row, first_row + num_rows) of out, columns of one panel.
struct OutTile {
  const LinearArgs& args;
  const float* row_scales;  // as Product has them
  size_t panel_idx;
  size_t first_row;
  size_t num_rows;

  size_t NumColumns() const { return static_cast<size_t>(args.weight->NumRows()); }
  size_t FirstColumn() const { return panel_idx * size_t{kPanelRows}; }
  size_t Index(size_t r) const { return (first_row + r) * NumColumns() + FirstColumn(); }
};

struct Product {
  const LinearArgs& args;
  const int32_t* row_ids;  // null: row r of x is x[r]
  const CpuMatrix& weight;
  WeightFormat format;
  size_t num_steps;  // in-features
  size_t num_tiles;
  // float [tile][k][row of the tile], or int16 [tile][pair of k][row of the tile][2]
  const std::byte* x;
  const float* row_scales;  // of int16 rows, [num_rows]; null: of floats
  Scratch& scratch;

  // Rows are dealt to tiles evenly: 13 rows are a tile of 6 and one of 7.
  size_t FirstRow(size_t tile) const {
    return tile * static_cast<size_t>(args.num_rows) / num_tiles;
  }
  size_t NumRows(size_t tile) const { return FirstRow(tile + 1) - FirstRow(tile); }

  size_t XElementBytes() const { return format.is_int8 ? sizeof(int16_t) : sizeof(float); }
  // Steps that a row of x has with its padding.
  size_t PackedSteps() const { return format.is_int8 ? (num_steps + 1) / 2 * 2 : num_steps; }
  // Where a tile's step k lies. Requires  int8: k is even
  const std::byte* X(size_t tile, size_t k) const {
    return x + (FirstRow(tile) * PackedSteps() + k * NumRows(tile)) * XElementBytes();
  }

  OutTile Out(size_t panel_idx, size_t tile) const {
    return {args, row_scales, panel_idx, FirstRow(tile), NumRows(tile)};
  }

  const std::byte* Panel(size_t panel_idx) const {
    return static_cast<const std::byte*>(weight.Panel(static_cast<int>(panel_idx)));
  }
  // Bytes of a panel from one k to the next, with its share of scales, rounded up: for prefetching.
  size_t StepBytes() const { return (weight.PanelBytes() + num_steps - 1) / num_steps; }
};

// Row `row` of the product in x.
const float* RowOf(const Product& product, size_t row) {
  const size_t idx = product.row_ids == nullptr ? row : static_cast<size_t>(product.row_ids[row]);
  return product.args.x + idx * product.num_steps;
}

// Rows of a tile, normalised, interleaved as the tile kernels read them.
void PackTile(const Product& product, size_t tile, int thread_idx, float* packed) {
  const LayerNormView& norm = product.args.norm;
  const size_t first_row = product.FirstRow(tile);
  const size_t num_rows = product.NumRows(tile);
  const size_t width = product.num_steps;
  const float* rows[kMaxTileRows];
  float* normed = norm.weight == nullptr
                      ? nullptr
                      : product.scratch.OfThread<float>(thread_idx, num_rows * width);
  for (size_t r = 0; r < num_rows; ++r) {
    rows[r] = RowOf(product, first_row + r);
    if (normed != nullptr) {
      LayerNormRow(rows[r], static_cast<int>(width), norm, normed + r * width);
      rows[r] = normed + r * width;
    }
  }
  kInterleaveFunctions<float>[num_rows](rows, width, packed + first_row * width);
}

// The same as int16, with the rows' scales.
// Shapes    packed: pairs of int16; scales [num_rows of the product]
void PackInt8Tile(const Product& product, size_t tile, int thread_idx, int32_t* packed,
                  float* scales) {
  const LayerNormView& norm = product.args.norm;
  const size_t first_row = product.FirstRow(tile);
  const size_t num_rows = product.NumRows(tile);
  const size_t width = product.num_steps;
  const size_t row_pairs = (width + 15) / 16 * 8;
  auto* pairs = product.scratch.OfThread<int32_t>(thread_idx, num_rows * row_pairs + width);
  float* normed = reinterpret_cast<float*>(pairs + num_rows * row_pairs);
  const int32_t* rows[kMaxTileRows];
  for (size_t r = 0; r < num_rows; ++r) {
    const float* x = RowOf(product, first_row + r);
    if (norm.weight != nullptr) {
      LayerNormRow(x, static_cast<int>(width), norm, normed);
      x = normed;
    }
    scales[first_row + r] = RoundRow(x, width, reinterpret_cast<int16_t*>(pairs + r * row_pairs));
    rows[r] = pairs + r * row_pairs;
  }
  const size_t num_pairs = product.PackedSteps() / 2;
  kInterleaveFunctions<int32_t>[num_rows](rows, num_pairs, packed + first_row * num_pairs);
}

// Lays x out for the tile kernels.
void PackRows(Product& product, ThreadPool& pool) {
  const size_t num_rows = static_cast<size_t>(product.args.num_rows);
  const int64_t num_tiles = static_cast<int64_t>(product.num_tiles);
  if (!product.format.is_int8) {
    float* packed = product.scratch.Shared<float>(num_rows * product.num_steps);
    product.x = reinterpret_cast<const std::byte*>(packed);
    pool.ParallelFor(num_tiles, [&](int64_t tile, int thread_idx) {
      PackTile(product, static_cast<size_t>(tile), thread_idx, packed);
    });
    return;
  }
  const size_t num_words = num_rows * product.PackedSteps() / 2;
  auto* packed = product.scratch.Shared<int32_t>(num_words + num_rows);
  float* scales = reinterpret_cast<float*>(packed + num_words);
  product.x = reinterpret_cast<const std::byte*>(packed);
  product.row_scales = scales;
  pool.ParallelFor(num_tiles, [&](int64_t tile, int thread_idx) {
    PackInt8Tile(product, static_cast<size_t>(tile), thread_idx, packed, scales);
  });
}

// What a row of sums becomes: times `scale`, then bias, activation, residual.
struct Finish {
  float scale = 1;
  const float* bias = nullptr;
  Activation activation = Activation::kNone;
  const float* residual = nullptr;
};

// One row of a tile's sums to kPanelRows elements of out.
// Shapes    every array [kPanelRows]; bias and residual null or not
HWY_INLINE void FinishColumns(const float* sums, const Finish& finish, float* out) {
  const FloatTag d;
  for (size_t c = 0; c < kPanelRows; c += kLanes) {
    FloatVec y = hn::Mul(hn::Load(d, sums + c), hn::Set(d, finish.scale));
    if (finish.bias != nullptr) y = hn::Add(y, hn::LoadU(d, finish.bias + c));
    if (finish.activation == Activation::kGeluTanh) y = GeluTanh(d, y);
    if (finish.residual != nullptr) y = hn::Add(y, hn::LoadU(d, finish.residual + c));
    hn::StoreU(y, d, out + c);
  }
}

// The same for the last panel, of which the matrix has only `count` columns.
void FinishLastColumns(const float* sums, Finish finish, size_t count, float* out) {
  float bias[kPanelRows] = {}, residual[kPanelRows] = {}, whole[kPanelRows];
  const auto pad = [count](const float*& from, float* to) {
    if (from != nullptr) from = static_cast<float*>(std::memcpy(to, from, count * sizeof(float)));
  };
  pad(finish.bias, bias);
  pad(finish.residual, residual);
  FinishColumns(sums, finish, whole);
  std::memcpy(out, whole, count * sizeof(float));
}

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
  Finish finish = {.bias = args.bias == nullptr ? nullptr : args.bias + tile.FirstColumn(),
                   .activation = args.activation};
  for (size_t r = 0; r < tile.num_rows; ++r, sums += kPanelRows) {
    const size_t idx = tile.Index(r);
    if (tile.row_scales != nullptr) finish.scale = tile.row_scales[tile.first_row + r];
    if (args.residual != nullptr) finish.residual = args.residual + idx;
    if (count == kPanelRows) {
      FinishColumns(sums, finish, args.out + idx);
    } else {
      FinishLastColumns(sums, finish, count, args.out + idx);
    }
  }
}

// One tile times one panel: the weights are widened on their way to the multipliers.
void MultiplyOne(const Product& product, size_t panel_idx, size_t tile, int thread_idx) {
  const size_t num_rows = product.NumRows(tile);
  float* sums = product.scratch.OfThread<float>(thread_idx, num_rows * size_t{kPanelRows});
  const std::byte* panel = product.Panel(panel_idx);
  (*product.format.tiles)[num_rows](panel, product.X(tile, 0), product.num_steps, false,
                                    {panel + kPrefetchBytes, product.StepBytes()}, sums);
  FinishTile(product.Out(panel_idx, tile), sums);
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
    const TileFunctions* tiles = product.format.tiles;
    if (product.format.widen != nullptr) {
      product.format.widen(stored, count, wide);
      weights = wide;
      tiles = &kTileFunctions<float>;
    }
    for (size_t tile = first_tile; tile < end_tile; ++tile) {
      const size_t num_rows = product.NumRows(tile);
      const std::byte* x = product.X(tile, k);
      float* tile_sums = sums + (product.FirstRow(tile) - first_row) * size_t{kPanelRows};
      const OutTile out = product.Out(panel_idx, tile);
      // Behind the first tile the next weights come in, behind the others the next tile's x.
      const size_t x_step_bytes = num_rows * product.XElementBytes();
      const Upcoming upcoming =
          tile == first_tile ? Upcoming{stored + count * product.StepBytes(), product.StepBytes()}
                             : Upcoming{x + product.PackedSteps() * x_step_bytes, x_step_bytes};
      if (is_last) PrefetchOut(out);
      (*tiles)[num_rows](weights, x, count, k > 0, upcoming, tile_sums);
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
                  .x = reinterpret_cast<const std::byte*>(args.x),
                  .row_scales = nullptr,
                  .scratch = scratch};
  const bool as_it_is =
      num_rows == 1 && row_ids == nullptr && args.norm.weight == nullptr && !product.format.is_int8;
  if (!as_it_is) PackRows(product, pool);

  const size_t num_panels = static_cast<size_t>(weight.NumPanels());
  const size_t num_threads = static_cast<size_t>(pool.NumThreads());
  const size_t wanted_blocks = (kMinPairsPerThread * num_threads + num_panels - 1) / num_panels;
  const size_t num_blocks = std::max((num_rows + kBlockRows - 1) / kBlockRows,
                                     std::min(wanted_blocks, product.num_tiles / 2));
  // Adjacent panels go to one thread: the prefetch at the end of one is the start of the next.
  pool.ParallelFor(static_cast<int64_t>(num_blocks * num_panels),
                   [&](int64_t task_idx, int thread_idx) {
                     const size_t block = static_cast<size_t>(task_idx) / num_panels;
                     const size_t panel = static_cast<size_t>(task_idx) % num_panels;
                     const size_t first_tile = block * product.num_tiles / num_blocks;
                     const size_t end_tile = (block + 1) * product.num_tiles / num_blocks;
                     if (end_tile - first_tile == 1) {
                       MultiplyOne(product, panel, first_tile, thread_idx);
                     } else {
                       MultiplyMany(product, panel, first_tile, end_tile, thread_idx);
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
