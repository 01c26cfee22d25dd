// Score, the first stage of attention: dot products of an item's query rows with the keys of a
// split. Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_SCORE_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_SCORE_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_SCORE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/attention_math.h"
#include "kernels/cpu/attention_dot-inl.h"
#include "kernels/cpu/attention_fixed-inl.h"
#include "kernels/cpu/attention_phi-inl.h"
#include "kernels/cpu/attention_work-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// Writes the rows of q times their scales to scratch, interleaved by groups. Padding rows are zero.
template <typename T>
void ScaleQueries(const Work<T>& work) {
  const size_t head_dim = work.HeadDim();
  for (int row = 0; row < work.item.PaddedRows(); ++row) {
    const int first = row / kGroupRows * kGroupRows;  // of its group
    const size_t group_rows = Size(work.item.GroupRows(first));
    float* to = work.task.q + Size(first) * head_dim + Size(row - first);
    if (row >= work.item.num_rows) {
      for (size_t dim = 0; dim < head_dim; ++dim) to[dim * group_rows] = 0.0f;
      continue;
    }
    const float* q = work.args.q + work.VectorIdx(row);
    const double unit = IsBase2(work.args.spec.Form()) ? 1.0 / std::log(2.0) : 1.0;
    const float scale =
        float(unit * ScaleOf(work.args.spec, work.args.kv.layout.head_dim, work.item.NumKeys(row)));
    for (size_t dim = 0; dim < head_dim; ++dim) to[dim * group_rows] = scale * q[dim];
  }
}

// Sets the addresses of the tile's vectors of keys. Vectors past the last key repeat the last
// vector: its memory is readable, and its scores are not used.
template <typename T>
void FindTile(const KvHead<T>& kv, int first_key, int num_keys, const KeyOf<T>** vectors,
              const float** scales) {
  constexpr int kLanes = int(kScoreLanes);
  const int end = first_key + int(kTileKeys);
  if (end <= num_keys && kv.InOnePage(first_key, end - 1)) {
    const KeyOf<T>* first = kv.Key(first_key);
    const float* first_scales = kv.KeyScales(first_key);
    for (size_t v = 0; v < kTileVectors; ++v) {
      vectors[v] = first + v * kScoreLanes * kKeyElements<T>;
      scales[v] = kKeysHaveScales<T> ? first_scales + v * kScoreLanes : nullptr;
    }
    return;
  }
  const int last = (num_keys - 1) / kLanes * kLanes;
  for (size_t v = 0; v < kTileVectors; ++v) {
    const int key = std::min(first_key + int(v) * kLanes, last);
    vectors[v] = kv.Key(key);
    scales[v] = kv.KeyScales(key);
  }
}

// Prefetch distance of a decode step, in bytes of keys; measured (BENCHMARKS.md).
template <typename T>
constexpr size_t kBytesAhead = std::is_same_v<T, int8_t> ? size_t{12} << 10 : size_t{8} << 10;

// True if the keys of a tile lie behind those before them in memory: the hardware prefetches them,
// and faster than software.
template <typename T>
bool ContinuesStream(const KvHead<T>& kv, int first_key) {
  for (size_t v = 0; v < kTileVectors; ++v) {
    if (!kv.FollowsPage(first_key + int(v * kScoreLanes))) return false;
  }
  return kv.PageSize() <= int(kTileKeys);  // else dims of a page are between those of a tile
}

// Prefetches part `part` of `num_parts` of a tile's keys.
template <typename T, class Prefetch>
void PrefetchTile(size_t part, size_t num_parts, size_t head_dim, const KeyOf<T>* const* vectors,
                  size_t stride, const Prefetch& prefetch) {
  constexpr size_t kVectorBytes = kScoreLanes * kKeyElements<T> * sizeof(KeyOf<T>);
  constexpr size_t kVectorsOfLine = std::max<size_t>(1, 64 / kVectorBytes);
  const size_t num_strides = head_dim / kKeyElements<T>;
  const size_t step = (num_strides + num_parts - 1) / num_parts;
  const size_t end = std::min(num_strides, (part + 1) * step);
  for (size_t dim = part * step; dim < end; ++dim) {
    for (size_t v = 0; v < kTileVectors; v += kVectorsOfLine) prefetch(vectors[v] + dim * stride);
  }
}

// Writes the dot products of kRows rows from first_row on with the tile's keys to scores +
// first_key. kStreams: as in DotTile.
template <size_t kRows, bool kStreams, typename T, class Meanwhile>
void DotDecodeTile(const Work<T>& work, int first_row, int first_key, const KeyTile<KeyOf<T>>& tile,
                   const Meanwhile& meanwhile) {
  constexpr size_t kVectors = kIsFixed<T>  ? kFixedVectors<kRows>
                              : kRows == 1 ? kRowVectors
                                           : kGroupVectors;
  [[maybe_unused]] const float* q = work.task.q + Size(first_row) * work.HeadDim();
  float* scores = work.values.Scores(first_row) + first_key;
  for (size_t v = 0; v < kTileVectors; v += kVectors) {
    const KeyTile<KeyOf<T>> keys{.vectors = tile.vectors + v,
                                 .stride = tile.stride,
                                 .scales = tile.scales == nullptr ? nullptr : tile.scales + v};
    const auto of_tile = [&](size_t i) { meanwhile(v + i); };
    if constexpr (kIsFixed<T>) {
      FixedTile<kRows, kVectors, kStreams>(work, first_row, keys, scores + v * kScoreLanes,
                                           of_tile);
    } else {
      DotTile<kRows, kVectors, kStreams>(q, work.HeadDim(), keys, scores + v * kScoreLanes,
                                         work.values.row_stride, of_tile);
    }
  }
}

// The same for the group of rows that starts at first_row.
template <typename T>
void DotDecodeGroup(const Work<T>& work, int first_row, int first_key,
                    const KeyTile<KeyOf<T>>& tile) {
  static_assert(kGroupRows == 4);
  const auto nothing = [](size_t) {};
  const int num_rows = work.item.GroupRows(first_row);
  if (kIsFixed<T> && HWY_TARGET <= HWY_AVX3 && num_rows == 4) {  // for kFixedVectors
    DotDecodeTile<2, false>(work, first_row, first_key, tile, nothing);
    DotDecodeTile<2, false>(work, first_row + 2, first_key, tile, nothing);
    return;
  }
  switch (num_rows) {
    case 1: return DotDecodeTile<1, false>(work, first_row, first_key, tile, nothing);
    case 2: return DotDecodeTile<2, false>(work, first_row, first_key, tile, nothing);
    case 3: return DotDecodeTile<3, false>(work, first_row, first_key, tile, nothing);
    default: return DotDecodeTile<4, false>(work, first_row, first_key, tile, nothing);
  }
}

// Writes the dot products of a decode item's rows with the tile's keys, prefetches later keys, and
// calls meanwhile(v, count), once for each of the tile's vectors [v, v + count). One row waits for
// memory: the calls are between its dot products. Those of several rows need all registers, and
// arithmetic limits them: one call comes before them.
template <typename T, class Meanwhile>
void ScoreDecodeTile(const Work<T>& work, int first_key, const Meanwhile& meanwhile) {
  const KeyOf<T>* vectors[kTileVectors];
  const float* scales[kTileVectors];
  FindTile(work.kv, first_key, work.item.MaxKeys(), vectors, scales);
  const KeyTile<KeyOf<T>> tile{.vectors = vectors,
                               .stride = work.kv.KeyStride(),
                               .scales = kKeysHaveScales<T> ? scales : nullptr};

  const size_t tile_bytes = kTileKeys * work.HeadDim() * sizeof(KeyOf<T>);
  const size_t keys_ahead = std::max(size_t{1}, kBytesAhead<T> / tile_bytes) * kTileKeys;
  const int first_ahead = first_key + int(keys_ahead);
  const bool prefetches =
      first_ahead + int(kTileKeys) <= work.item.MaxKeys() && !ContinuesStream(work.kv, first_ahead);
  const KeyOf<T>* ahead[kTileVectors] = {};
  const float* scales_ahead[kTileVectors] = {};
  if (prefetches) FindTile(work.kv, first_ahead, work.item.MaxKeys(), ahead, scales_ahead);
  const auto prefetch = [&](size_t v) {
    if (!prefetches) return;
    PrefetchTile<T>(v, kTileVectors, work.HeadDim(), ahead, tile.stride,
                    [](const KeyOf<T>* at) { PrefetchToL2(at); });
    if (kKeysHaveScales<T>) PrefetchToL2(scales_ahead[v]);
  };
  if (work.item.num_rows == 1) {
    DotDecodeTile<1, true>(work, 0, first_key, tile, [&](size_t v) {
      meanwhile(v, size_t{1});
      prefetch(v);
    });
    return;
  }
  meanwhile(size_t{0}, kTileVectors);
  for (size_t v = 0; v < kTileVectors; ++v) prefetch(v);
  for (int row = 0; row < work.item.num_rows; row += kGroupRows) {
    DotDecodeGroup(work, row, first_key, tile);
  }
}

// True if a block converts a tile's keys to floats once, for all its rows. Otherwise each group of
// rows converts them on its own: with 32 registers, conversions run beside the multiply-adds of 4
// rows, and the tile takes half as much of L1.
template <typename T>
constexpr bool kWidensTile =
    !std::is_same_v<T, float> && !kIsFixed<T> && (HWY_TARGET > HWY_AVX3 || kHasScales<T>);

// Writes the dot products of a group of rows with the tile's keys to scores + first_key.
template <typename T, typename Key>
void DotBlockGroup(const Work<T>& work, int first_row, int first_key, const KeyTile<Key>& tile) {
  constexpr size_t kVectors = kIsFixed<T> ? kFixedVectors<Size(kGroupRows)> : kGroupVectors;
  for (size_t v = 0; v < kTileVectors; v += kVectors) {
    const KeyTile<Key> keys{.vectors = tile.vectors + v,
                            .stride = tile.stride,
                            .scales = tile.scales == nullptr ? nullptr : tile.scales + v};
    float* scores = work.values.Scores(first_row) + first_key + v * kScoreLanes;
    if constexpr (kIsFixed<T>) {
      FixedTile<Size(kGroupRows), kVectors, /*kStreams=*/false>(work, first_row, keys, scores,
                                                                [](size_t) {});
    } else {
      DotTile<Size(kGroupRows), kVectors, /*kStreams=*/false>(
          work.task.q + Size(first_row) * work.HeadDim(), work.HeadDim(), keys, scores,
          work.values.row_stride, [](size_t) {});
    }
  }
}

// Fx16: the scores from both planes, and their high parts to `high` (BothTile).
HWY_INLINE void BothBlockGroup(const Work<Fx16>& work, int first_row, int first_key,
                               const KeyTile<uint8_t>& tile, const uint8_t* low, float* high) {
  constexpr size_t kVectors = kFixedVectors<Size(kGroupRows)>;
  for (size_t v = 0; v < kTileVectors; v += kVectors) {
    BothTile<kVectors>(
        work, first_row,
        {.vectors = tile.vectors + v, .stride = tile.stride, .scales = tile.scales + v},
        low + v * 4 * kScoreLanes, high + v * kScoreLanes,
        work.values.Scores(first_row) + first_key + v * kScoreLanes);
  }
}

// Fx16: completes the scores of a group of short rows.
HWY_INLINE void CompleteBlockGroup(const Work<Fx16>& work, int first_row, int first_key,
                                   const KeyTile<uint8_t>& tile, const uint8_t* low) {
  constexpr size_t kVectors = kFixedVectors<Size(kGroupRows)>;
  for (size_t v = 0; v < kTileVectors; v += kVectors) {
    AddLowTile<kVectors>(
        work, first_row,
        {.vectors = tile.vectors + v, .stride = tile.stride, .scales = tile.scales + v},
        low + v * 4 * kScoreLanes, work.values.Scores(first_row) + first_key + v * kScoreLanes);
  }
}

// Fx16: prefetches a group's part of the low plane of the tile from first_key on.
HWY_INLINE void PrefetchLow(const Work<Fx16>& work, int first_key, int row) {
  const int step = int(kTileKeys) * kGroupRows / work.item.PaddedRows();
  const int begin = first_key + row / kGroupRows * step;
  const int end = std::min(work.item.MaxKeys(), begin + step);
  for (int key = begin; key < end; ++key) {
    const uint8_t* low = work.kv.LowKey(key);
    for (size_t at = 0; at < work.HeadDim(); at += 64) hwy::Prefetch(low + at);
  }
}

// Writes the dot products of all rows of the item with the tile's keys to scores + first_key, and
// prefetches the next tile. Calls done(row) when the group of rows from `row` on has them: they are
// in L1 then. high: Fx16 groups with both planes (BothTile).
template <typename T, class Done>
void ScoreBlockTile(const Work<T>& work, int first_key, [[maybe_unused]] float* high,
                    const Done& done) {
  [[maybe_unused]] const ScoreTag d;
  const size_t head_dim = work.HeadDim();
  const size_t stride = work.kv.KeyStride();
  const KeyOf<T>*vectors[kTileVectors], *ahead[kTileVectors];
  const float *scales[kTileVectors], *scales_ahead[kTileVectors];
  FindTile(work.kv, first_key, work.item.MaxKeys(), vectors, scales);
  FindTile(work.kv, first_key + int(kTileKeys), work.item.MaxKeys(), ahead, scales_ahead);
  [[maybe_unused]] const float* wide[kTileVectors];
  if constexpr (kWidensTile<T>) {
    for (size_t v = 0; v < kTileVectors; ++v) wide[v] = work.task.tile + v * kScoreLanes;
    for (size_t dim = 0; dim < head_dim; ++dim) {
      for (size_t v = 0; v < kTileVectors; ++v) {
        hn::StoreU(LoadWide(vectors[v] + dim * stride), d,
                   work.task.tile + dim * kTileKeys + v * kScoreLanes);
      }
    }
  }
  [[maybe_unused]] auto* low = reinterpret_cast<uint8_t*>(work.task.tile);
  if constexpr (kIsFixed<T>) {
    if (TilesLow(work.item)) TransposeLow(work, first_key, low);
  }
  const float* const* tile_scales = kKeysHaveScales<T> ? scales : nullptr;
  const size_t num_groups = Size(work.item.PaddedRows() / kGroupRows);
  for (int row = 0; row < work.item.PaddedRows(); row += kGroupRows) {
    PrefetchTile<T>(Size(row / kGroupRows), num_groups, head_dim, ahead, stride,
                    [](const KeyOf<T>* at) { hwy::Prefetch(at); });
    if constexpr (kIsFixed<T>) {
      if (TilesLow(work.item)) PrefetchLow(work, first_key + int(kTileKeys), row);
      if (HasBothPlanes(work.item, row)) {
        BothBlockGroup(work, row, first_key,
                       {.vectors = vectors, .stride = stride, .scales = scales}, low, high);
        done(row);
        continue;
      }
    }
    if constexpr (kWidensTile<T>) {
      DotBlockGroup(work, row, first_key,
                    KeyTile<float>{.vectors = wide, .stride = kTileKeys, .scales = tile_scales});
    } else {
      DotBlockGroup(work, row, first_key,
                    KeyTile<KeyOf<T>>{.vectors = vectors, .stride = stride, .scales = tile_scales});
    }
    if constexpr (kIsFixed<T>) {
      if (CompletesTile(work.item, row)) {
        CompleteBlockGroup(work, row, first_key,
                           {.vectors = vectors, .stride = stride, .scales = scales}, low);
      }
    }
    done(row);
  }
}

template <typename T>
StageOne StageOneOf(const Work<T>& work, int row) {
  const AttentionSpec& spec = work.args.spec;
  const AttentionForm form = spec.Form();
  return {.phi = form.phi,
          .shift = float(ShiftOf(spec, work.item.NumKeys(row))),
          .is_base_2 = IsBase2(form)};
}

// Adds a row's keys in [chunk, end) to the sum and the maximum of their split. If phi is e^s, the
// sum is of e^(s - the split's maximum so far), and only stage 2 needs it.
template <typename T>
void AddChunk(const Work<T>& work, StageOne stage, int row, int chunk, int end,
              const ChunkStats& stats) {
  const size_t at = work.values.AtSplit(row, chunk / kSplitKeys);
  double& sum = work.values.sum[at];
  float& max = work.values.max[at];
  const float max_before = max;
  max = std::max(max_before, stats.Max());
  if (stage.phi != Phi::kExp) {
    sum += stats.Sum(stage);
  } else if (work.args.spec.Form().reweights && end > chunk) {
    sum = sum * std::exp(double{max_before} - double{max}) +
          SumOfExp(work.values.Scores(row) + chunk, Size(end - chunk), max);
  }
}

// Applies StageOne to a row's first `count` scores from first_key on: of a tile, or of some vectors
// of it. first_vector: of the scores, in their tile.
template <typename T>
HWY_INLINE void ApplyStage(const Work<T>& work, StageOne stage, int row, int first_key,
                           size_t first_vector, size_t count, size_t capacity, ChunkStats& stats) {
  if constexpr (kIsFixed<T>) {
    AddFixed(work, row, work.values.Scores(row) + first_key, first_key, first_vector, count, stats);
  } else {
    ApplyPhi(stage, work.values.Scores(row) + first_key, first_vector, count, capacity, stats);
  }
}

// Completes the first `count` scores of a tile of a short row (two_planes.h).
template <typename T>
HWY_INLINE void CompleteShort(const Work<T>& work, int row, int first_key, int count) {
  if constexpr (kIsFixed<T>) {
    if (work.item.NumKeys(row) <= kShortRowKeys && !CompletesTile(work.item, row)) {
      AddLow(work, row, first_key, count);
    }
  }
}

// Takes ALiBi's share from the first `count` scores of a tile, and the keys before the window out.
template <typename T>
HWY_INLINE void ApplyDistance(const Work<T>& work, int row, int first_key, int count) {
  const AttentionSpec& spec = work.args.spec;
  if (!spec.has_alibi && spec.window == 0) return;
  const ScoreTag d;
  const int num_keys = work.item.NumKeys(row);
  float* scores = work.values.Scores(row) + first_key;
  if (spec.has_alibi) {
    const ScoreVec slope = hn::Set(d, work.slopes[row]);
    for (int i = 0; i < count; i += int(kScoreLanes)) {
      const ScoreVec distance = hn::Iota(d, float(first_key + i - (num_keys - 1)));  // 0 or below
      hn::StoreU(FusedMulAdd(d, slope, distance, hn::LoadU(d, scores + i)), d, scores + i);
    }
  }
  const int num_before = std::clamp(spec.FirstKey(num_keys) - first_key, 0, count);
  std::fill_n(scores, num_before, kLeastScore);
}

// Score of a decode step. The phi of a tile is pure arithmetic: it runs between the dot products of
// the next tile, so that memory reads never wait for it.
template <typename T>
void ScoreDecode(const Work<T>& work, int split) {
  constexpr int kTile = int(kTileKeys);
  const int num_rows = work.item.num_rows;
  const StageOne stage = StageOneOf(work, 0);  // of all rows: they have the same keys
  const int first = std::max(split * kSplitKeys, work.FirstChunk());
  const int end = std::min(work.item.MaxKeys(), (split + 1) * kSplitKeys);
  if (first >= end) return;
  ChunkStats stats[kBlockRows];
  for (int row = 0; row < num_rows; ++row) stats[row].Reset(stage.Least());
  for (int key = first; key < end; key += kTile) {
    ScoreDecodeTile(work, key, [&](size_t v, size_t count) {
      if (key == first) return;
      const int before = key - kTile + int(v * kScoreLanes);
      const size_t num_keys = count * kScoreLanes;
      for (int row = 0; row < num_rows; ++row) {
        ApplyStage(work, stage, row, before, v, num_keys, num_keys, stats[row]);
      }
    });
    for (int row = 0; row < num_rows; ++row) {
      CompleteShort(work, row, key, std::min(kTile, end - key));
      ApplyDistance(work, row, key, std::min(kTile, end - key));
    }
    if (key % kChunkKeys != 0 || key == first) continue;
    for (int row = 0; row < num_rows; ++row) {
      AddChunk(work, stage, row, key - kChunkKeys, key, stats[row]);
      stats[row].Reset(stage.Least());
    }
  }
  const int last = (end - 1) / kTile * kTile;
  for (int row = 0; row < num_rows; ++row) {
    ApplyStage(work, stage, row, last, 0, Size(end - last), kTileKeys, stats[row]);
    AddChunk(work, stage, row, last / kChunkKeys * kChunkKeys, end, stats[row]);
  }
}

// Score of a block of rows, by chunk.
template <typename T>
void ScoreBlock(const Work<T>& work, int split) {
  const AttentionItem& item = work.item;
  StageOne stages[kBlockRows];
  for (int row = 0; row < item.num_rows; ++row) stages[row] = StageOneOf(work, row);
  const int end = std::min(item.MaxKeys(), (split + 1) * kSplitKeys);
  const int first = std::max(split * kSplitKeys, work.FirstChunk());
  for (int chunk = first; chunk < end; chunk += kChunkKeys) {
    ChunkStats stats[kBlockRows];
    for (int row = 0; row < item.num_rows; ++row) stats[row].Reset(stages[row].Least());
    const int chunk_end = std::min(end, chunk + kChunkKeys);
    HWY_ALIGN float high[kIsFixed<T> ? Size(kGroupRows) * kTileKeys : 1];
    for (int key = chunk; key < chunk_end; key += int(kTileKeys)) {
      ScoreBlockTile(work, key, high, [&](int group) {
        const int group_end = std::min(group + kGroupRows, item.num_rows);
        for (int row = group; row < group_end; ++row) {
          const int count = std::clamp(item.NumKeys(row) - key, 0, int(kTileKeys));
          if constexpr (kIsFixed<T>) {
            if (HasBothPlanes(item, row)) {
              AddFixed(work, row, high + Size(row - group) * kTileKeys, key, 0, Size(count),
                       stats[row]);
              float& max = work.values.refined_max[work.values.AtSplit(row, split)];
              max = MaxScore(work.values.Scores(row) + key, Size(count), max);
              continue;
            }
          }
          CompleteShort(work, row, key, count);
          ApplyDistance(work, row, key, count);
          ApplyStage(work, stages[row], row, key, 0, Size(count), kTileKeys, stats[row]);
        }
      });
    }
    for (int row = 0; row < item.num_rows; ++row) {
      AddChunk(work, stages[row], row, chunk, std::min(chunk_end, item.NumKeys(row)), stats[row]);
    }
  }
}

// Score: reads K of one split once; writes phi of the scores, or leaves the scores (StageOne), and
// the sum and maximum.
template <typename T>
void Score(const Work<T>& work, int split) {
  for (int row = 0; row < work.item.num_rows; ++row) {
    work.values.sum[work.values.AtSplit(row, split)] = 0;
    work.values.max[work.values.AtSplit(row, split)] = kLeastScore;
    work.values.refined_max[work.values.AtSplit(row, split)] = kLeastScore;
  }
  if (work.item.is_decode) {
    ScoreDecode(work, split);
  } else {
    ScoreBlock(work, split);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
