#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/packed_matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_math-inl.h"
#include "kernels/cpu/weight_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// Rows of x in a block (M). Weights are read from memory and widened once per block; the block's x
// stays in L2 from one panel to the next.
constexpr size_t kBlockM = 192;

// Depth of a block (K): the widened weights (32 KiB) and a tile of x fit L1.
constexpr size_t kBlockK = 256;
static_assert(kBlockK % kGroupCols == 0 && kBlockK % kInt4GroupCols == 0);  // starts with scales

// A GEMM with small N on many threads splits M into more blocks, until each thread has this many
// pairs of block and panel, or a block has two tiles.
constexpr size_t kMinPairsPerThread = 4;

// The part of out that a tile computes: rows [first_row, first_row + num_rows), columns of one
// panel.
struct OutTile {
  const LinearArgs& args;
  float softcap;
  const float* row_scales;  // as in Gemm
  size_t panel_idx;
  size_t first_row;
  size_t num_rows;

  size_t NumColumns() const { return size_t(args.weight->NumRows()); }
  size_t FirstColumn() const { return panel_idx * size_t{kPanelN}; }
  size_t Index(size_t r) const { return (first_row + r) * NumColumns() + FirstColumn(); }
};

struct Gemm {
  const LinearArgs& args;
  float softcap;           // LogitsArgs::softcap
  const int32_t* row_ids;  // null: row r of x is x[r]
  const CpuMatrix& weight;
  WeightFormat format;
  size_t depth;  // K
  size_t num_tiles;
  TileFunction single_tile;  // of one tile, which reads the weights as stored; null: blocks
  XLayout layout;            // of x
  const std::byte* x;
  const float* row_scales;  // of int16 rows, [num_rows]; null: of floats
  Scratch& scratch;

  // Tiles have nearly equal numbers of rows: 13 rows are a tile of 6 and one of 7.
  size_t FirstRow(size_t tile) const { return tile * size_t(args.num_rows) / num_tiles; }
  size_t NumRows(size_t tile) const { return FirstRow(tile + 1) - FirstRow(tile); }

  bool RoundsX() const { return layout != XLayout::kFloats; }
  size_t XElementBytes() const { return RoundsX() ? sizeof(int16_t) : sizeof(float); }
  // Depth of a packed row of x, with padding; quads: the sums of groups count as two k each.
  size_t PackedDepth() const {
    if (layout == XLayout::kQuads) return 4 * NumQuads(depth) + 2 * NumQuadGroups(depth);
    return (depth + format.depth_multiple - 1) / format.depth_multiple * format.depth_multiple;
  }
  // The packed x of a tile at k.
  // Requires  pairs: k is even; quads: k is 0
  const std::byte* X(size_t tile, size_t k) const {
    return x + (FirstRow(tile) * PackedDepth() + k * NumRows(tile)) * XElementBytes();
  }

  OutTile Out(size_t panel_idx, size_t tile) const {
    return {args, softcap, row_scales, panel_idx, FirstRow(tile), NumRows(tile)};
  }

  const std::byte* Panel(size_t panel_idx) const {
    return static_cast<const std::byte*>(weight.Panel(int(panel_idx)));
  }
  // Bytes of a panel per k with its share of scales, rounded up. For prefetching.
  size_t BytesPerK() const { return (weight.PanelBytes() + depth - 1) / depth; }
};

// Row `row` of the GEMM in x.
const float* RowOf(const Gemm& gemm, size_t row) {
  const size_t idx = gemm.row_ids == nullptr ? row : size_t(gemm.row_ids[row]);
  return gemm.args.x + idx * gemm.depth;
}

// Packs the rows of a tile: normalised, interleaved for the tile functions.
void PackTile(const Gemm& gemm, size_t tile, int thread_idx, float* packed) {
  const NormView& norm = gemm.args.norm;
  const size_t first_row = gemm.FirstRow(tile);
  const size_t num_rows = gemm.NumRows(tile);
  const size_t depth = gemm.depth;
  const float* rows[kMaxTileRows];
  float* normed = norm.kind == NormKind::kNone
                      ? nullptr
                      : gemm.scratch.OfThread<float>(thread_idx, num_rows * depth);
  for (size_t r = 0; r < num_rows; ++r) {
    rows[r] = RowOf(gemm, first_row + r);
    if (normed != nullptr) {
      NormRow(rows[r], int(depth), norm, normed + r * depth);
      rows[r] = normed + r * depth;
    }
  }
  kInterleaveFunctions<float>[num_rows](rows, depth, packed + first_row * depth);
}

// Packs rounded rows as quads.
// Shapes    rows [num_rows], each int16 [depth rounded up to 16], destroyed
void PackQuads(int32_t* const* rows, size_t num_rows, size_t depth, int32_t* packed) {
  int32_t* offsets = packed + NumQuads(depth) * num_rows * 2;
  const int64_t* quads[kMaxTileRows];
  for (size_t r = 0; r < num_rows; ++r) {
    auto* row = reinterpret_cast<int16_t*>(rows[r]);
    for (size_t group = 0; group < NumQuadGroups(depth); ++group) {
      const size_t first = group * kInt4GroupCols;
      const size_t end = std::min(first + kInt4GroupCols, depth);
      int32_t sum = 0;
      for (size_t k = first; k < end; ++k) sum += row[k];
      offsets[group * num_rows + r] = -128 * sum;
    }
    ToQuads(row, depth);
    quads[r] = reinterpret_cast<const int64_t*>(row);
  }
  kInterleaveFunctions<int64_t>[num_rows](quads, NumQuads(depth),
                                          reinterpret_cast<int64_t*>(packed));
}

// Packs a tile as 16-bit integers, with one scale per row.
// Shapes    packed: pairs of int16, or quads; scales [M]
void PackIntegerTile(const Gemm& gemm, size_t tile, int thread_idx, int32_t* packed,
                     float* scales) {
  const NormView& norm = gemm.args.norm;
  const size_t first_row = gemm.FirstRow(tile);
  const size_t num_rows = gemm.NumRows(tile);
  const size_t depth = gemm.depth;
  const size_t row_pairs = (depth + 15) / 16 * 8;
  auto* pairs = gemm.scratch.OfThread<int32_t>(thread_idx, num_rows * row_pairs + depth);
  float* normed = reinterpret_cast<float*>(pairs + num_rows * row_pairs);
  int32_t* rows[kMaxTileRows];
  const bool for_quads = gemm.weight.StoredType() == DType::kI4;
  for (size_t r = 0; r < num_rows; ++r) {
    const float* x = RowOf(gemm, first_row + r);
    if (norm.kind != NormKind::kNone) {
      NormRow(x, int(depth), norm, normed);
      x = normed;
    }
    rows[r] = pairs + r * row_pairs;
    scales[first_row + r] = RoundRow(x, depth, for_quads, reinterpret_cast<int16_t*>(rows[r]));
  }
  if (gemm.layout == XLayout::kQuads) return PackQuads(rows, num_rows, depth, packed);
  const size_t num_pairs = gemm.PackedDepth() / 2;
  kInterleaveFunctions<int32_t>[num_rows](rows, num_pairs, packed + first_row * num_pairs);
}

// Packs x for the tile functions.
void PackRows(Gemm& gemm, ThreadPool& pool) {
  const size_t num_rows = size_t(gemm.args.num_rows);
  const int64_t num_tiles = int64_t(gemm.num_tiles);
  if (!gemm.RoundsX()) {
    float* packed = gemm.scratch.Shared<float>(num_rows * gemm.depth);
    gemm.x = reinterpret_cast<const std::byte*>(packed);
    pool.ParallelFor(num_tiles, [&](int64_t tile, int thread_idx) {
      PackTile(gemm, size_t(tile), thread_idx, packed);
    });
    return;
  }
  const size_t num_words = num_rows * gemm.PackedDepth() / 2;
  auto* packed = gemm.scratch.Shared<int32_t>(num_words + num_rows);
  float* scales = reinterpret_cast<float*>(packed + num_words);
  gemm.x = reinterpret_cast<const std::byte*>(packed);
  gemm.row_scales = scales;
  pool.ParallelFor(num_tiles, [&](int64_t tile, int thread_idx) {
    PackIntegerTile(gemm, size_t(tile), thread_idx, packed, scales);
  });
}

// out = residual + scale * (activation(sum * row_scale + bias) * multiply), or the capped sum, for
// one row of a tile.
struct Epilogue {
  float row_scale = 1;
  const float* bias = nullptr;
  Activation activation = Activation::kNone;
  const float* multiply = nullptr;
  float scale = 1;
  const float* residual = nullptr;
  float softcap = 0;

  // The parts of GPT-2's block: bias, tanh-GELU, residual.
  bool IsSimple() const {
    return activation <= Activation::kGeluTanh && multiply == nullptr && scale == 1.0f &&
           softcap == 0.0f;
  }
};
static_assert(Activation::kNone < Activation::kGeluTanh &&
              Activation::kGeluTanh < Activation::kGeluErf);

// Writes one row of a tile to out.
// Shapes  every array [kPanelN]
template <bool kIsSimple>
HWY_INLINE void ApplyEpilogue(const float* sums, const Epilogue& epilogue, float* out) {
  const FloatTag d;
  for (size_t c = 0; c < kPanelN; c += kLanes) {
    FloatVec y = hn::Mul(hn::Load(d, sums + c), hn::Set(d, epilogue.row_scale));
    if (epilogue.bias != nullptr) y = hn::Add(y, hn::LoadU(d, epilogue.bias + c));
    if constexpr (kIsSimple) {
      if (epilogue.activation == Activation::kGeluTanh) y = GeluTanh(d, y);
    } else {
      y = Activate(d, epilogue.activation, y);
      if (epilogue.multiply != nullptr) y = hn::Mul(y, hn::LoadU(d, epilogue.multiply + c));
      if (epilogue.scale != 1.0f) y = hn::Mul(y, hn::Set(d, epilogue.scale));
    }
    if (epilogue.residual != nullptr) y = hn::Add(y, hn::LoadU(d, epilogue.residual + c));
    if (!kIsSimple && epilogue.softcap > 0) {
      const FloatVec cap = hn::Set(d, epilogue.softcap);
      y = hn::Mul(cap, Tanh(d, hn::Div(y, cap)));
    }
    hn::StoreU(y, d, out + c);
  }
}

// The same for the last panel, if the matrix has only `count` of its columns.
void ApplyEpilogueToPartialPanel(const float* sums, Epilogue epilogue, size_t count, float* out) {
  float bias[kPanelN] = {}, multiply[kPanelN] = {}, residual[kPanelN] = {}, whole[kPanelN];
  const auto pad = [count](const float*& from, float* to) {
    if (from != nullptr) from = static_cast<float*>(std::memcpy(to, from, count * sizeof(float)));
  };
  pad(epilogue.bias, bias);
  pad(epilogue.multiply, multiply);
  pad(epilogue.residual, residual);
  ApplyEpilogue<false>(sums, epilogue, whole);
  std::memcpy(out, whole, count * sizeof(float));
}

// Prefetches what a tile reads and writes. Each of its rows is on a different memory page; this
// saves 1 to 2% at 512 rows.
void PrefetchOut(const OutTile& tile) {
  constexpr size_t kLineFloats = 64 / sizeof(float);
  for (size_t r = 0; r < tile.num_rows; ++r) {
    const size_t idx = tile.Index(r);
    for (size_t c = 0; c < kPanelN; c += kLineFloats) {
      __builtin_prefetch(tile.args.out + idx + c, 1);
      if (tile.args.multiply != nullptr) hwy::Prefetch(tile.args.multiply + idx + c);
      if (tile.args.residual != nullptr) hwy::Prefetch(tile.args.residual + idx + c);
    }
  }
}

void StoreTile(const OutTile& tile, const float* sums) {
  const LinearArgs& args = tile.args;
  const size_t count = std::min(size_t{kPanelN}, tile.NumColumns() - tile.FirstColumn());
  Epilogue epilogue = {.bias = args.bias == nullptr ? nullptr : args.bias + tile.FirstColumn(),
                       .activation = args.activation,
                       .scale = args.scale,
                       .softcap = tile.softcap};
  if (args.multiply != nullptr) epilogue.multiply = args.multiply + tile.Index(0);
  const bool is_simple = epilogue.IsSimple();
  for (size_t r = 0; r < tile.num_rows; ++r, sums += kPanelN) {
    const size_t idx = tile.Index(r);
    if (tile.row_scales != nullptr) epilogue.row_scale = tile.row_scales[tile.first_row + r];
    if (args.multiply != nullptr) epilogue.multiply = args.multiply + idx;
    if (args.residual != nullptr) epilogue.residual = args.residual + idx;
    if (count == kPanelN && is_simple) {
      ApplyEpilogue<true>(sums, epilogue, args.out + idx);
    } else if (count == kPanelN) {
      ApplyEpilogue<false>(sums, epilogue, args.out + idx);
    } else {
      ApplyEpilogueToPartialPanel(sums, epilogue, count, args.out + idx);
    }
  }
}

// One tile times one panel. The tile functions widen the stored weights in registers.
void MultiplySingleTile(const Gemm& gemm, size_t panel_idx, size_t tile, int thread_idx) {
  const size_t num_rows = gemm.NumRows(tile);
  float* sums = gemm.scratch.OfThread<float>(thread_idx, num_rows * size_t{kPanelN});
  const std::byte* panel = gemm.Panel(panel_idx);
  gemm.single_tile(panel, gemm.X(tile, 0), gemm.depth, false,
                   {panel + kPrefetchBytes, gemm.BytesPerK()}, sums);
  StoreTile(gemm.Out(panel_idx, tile), sums);
}

// Tiles [first_tile, end_tile) times one panel. Each block of weights is widened once for all
// tiles.
void MultiplyTiles(const Gemm& gemm, size_t panel_idx, size_t first_tile, size_t end_tile,
                   int thread_idx) {
  const size_t depth = gemm.depth;
  const size_t first_row = gemm.FirstRow(first_tile);
  const size_t num_sums = (gemm.FirstRow(end_tile) - first_row) * size_t{kPanelN};
  float* sums = gemm.scratch.OfThread<float>(thread_idx, num_sums + kBlockK * size_t{kPanelN});
  float* wide = sums + num_sums;
  const DType stored_type = gemm.weight.StoredType();
  for (size_t k = 0; k < depth; k += kBlockK) {
    const size_t count = std::min(kBlockK, depth - k);
    const bool is_last = k + count == depth;
    const std::byte* stored = gemm.Panel(panel_idx) + PanelOffset(stored_type, int(k));
    const void* weights = stored;
    if (gemm.format.widen != nullptr) {
      gemm.format.widen(stored, count, wide);
      weights = wide;
    }
    for (size_t tile = first_tile; tile < end_tile; ++tile) {
      const size_t num_rows = gemm.NumRows(tile);
      const std::byte* x = gemm.X(tile, k);
      float* tile_sums = sums + (gemm.FirstRow(tile) - first_row) * size_t{kPanelN};
      const OutTile out = gemm.Out(panel_idx, tile);
      // The first tile prefetches the next block of weights, the others prefetch the next tile's x.
      const size_t x_bytes_per_k = num_rows * gemm.XElementBytes();
      const PrefetchStream prefetch =
          tile == first_tile
              ? PrefetchStream{stored + count * gemm.BytesPerK(), gemm.BytesPerK()}
              : PrefetchStream{x + gemm.PackedDepth() * x_bytes_per_k, x_bytes_per_k};
      if (is_last) PrefetchOut(out);
      (*gemm.format.block_tiles)[num_rows](weights, x, count, k > 0, prefetch, tile_sums);
      if (is_last) StoreTile(out, tile_sums);
    }
  }
}

void LinearOfTarget(const LinearArgs& args, const int32_t* row_ids, float softcap, ThreadPool& pool,
                    Scratch& scratch) {
  const auto& weight = static_cast<const CpuMatrix&>(*args.weight);
  const size_t num_rows = size_t(args.num_rows);
  Gemm gemm{.args = args,
            .softcap = softcap,
            .row_ids = row_ids,
            .weight = weight,
            .format = FormatOf(weight.StoredType()),
            .depth = size_t(weight.NumCols()),
            .num_tiles = (num_rows + kMaxTileRows - 1) / kMaxTileRows,
            .single_tile = nullptr,
            .layout = FormatOf(weight.StoredType()).x,
            .x = reinterpret_cast<const std::byte*>(args.x),
            .row_scales = nullptr,
            .scratch = scratch};
  if (gemm.num_tiles == 1) {
    gemm.single_tile = (*gemm.format.quad_tiles)[num_rows];
    if (gemm.single_tile != nullptr) {
      gemm.layout = XLayout::kQuads;
    } else {
      gemm.single_tile = (*gemm.format.tiles)[num_rows];
    }
  }
  const bool reads_x_in_place =
      num_rows == 1 && row_ids == nullptr && args.norm.kind == NormKind::kNone && !gemm.RoundsX();
  if (!reads_x_in_place) PackRows(gemm, pool);

  const size_t num_panels = size_t(weight.NumPanels());
  const size_t num_threads = size_t(pool.NumThreads());
  const size_t wanted_blocks = (kMinPairsPerThread * num_threads + num_panels - 1) / num_panels;
  const size_t num_blocks =
      std::max((num_rows + kBlockM - 1) / kBlockM, std::min(wanted_blocks, gemm.num_tiles / 2));
  // A thread has adjacent panels: the prefetch at the end of one panel is the start of the next.
  pool.ParallelFor(int64_t(num_blocks * num_panels), [&](int64_t task_idx, int thread_idx) {
    const size_t block = size_t(task_idx) / num_panels;
    const size_t panel = size_t(task_idx) % num_panels;
    const size_t first_tile = block * gemm.num_tiles / num_blocks;
    const size_t end_tile = (block + 1) * gemm.num_tiles / num_blocks;
    if (gemm.single_tile != nullptr) {
      MultiplySingleTile(gemm, panel, first_tile, thread_idx);
    } else {
      MultiplyTiles(gemm, panel, first_tile, end_tile, thread_idx);
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

void Run(const LinearArgs& args, const int32_t* row_ids, float softcap, ThreadPool& pool,
         Scratch& scratch) {
  LSSAR_CHECK(args.num_rows >= 0 && args.weight != nullptr);
  if (args.num_rows == 0) return;
  LSSAR_CHECK(args.x != nullptr && args.out != nullptr && args.x != args.out);
  HWY_DYNAMIC_DISPATCH(LinearOfTarget)(args, row_ids, softcap, pool, scratch);
}

}  // namespace

void LinearOnCpu(const LinearArgs& args, ThreadPool& pool, Scratch& scratch) {
  Run(args, nullptr, 0, pool, scratch);
}

void LogitsOnCpu(const LogitsArgs& args, ThreadPool& pool, Scratch& scratch) {
  Run({.num_rows = int(args.row_ids.size()),
       .x = args.x,
       .norm = args.norm,
       .weight = args.weight,
       .out = args.logits},
      args.row_ids.data(), args.softcap, pool, scratch);
}

void EmbedOnCpu(const EmbedArgs& args, ThreadPool& pool) {
  LSSAR_CHECK(args.table != nullptr);
  const auto& table = static_cast<const CpuMatrix&>(*args.table);
  const size_t hidden_size = size_t(table.NumCols());
  pool.ParallelFor(int64_t(args.ids.size()), [&](int64_t row, int) {
    const int32_t id = args.ids[size_t(row)];
    LSSAR_CHECK(0 <= id && id < table.NumRows());
    float* out = args.out + size_t(row) * hidden_size;
    table.WidenRow(id, out);
    if (args.position_table == nullptr) return;
    const float* position = args.position_table + size_t(args.positions[size_t(row)]) * hidden_size;
    for (size_t i = 0; i < hidden_size; ++i) out[i] += position[i];
  });
}

}  // namespace lssar
#endif  // HWY_ONCE
