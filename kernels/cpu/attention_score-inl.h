// Score, attention's first stage: every key of a split against an item's query rows.
// Included once per target, inside foreach_target.h.
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

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/attention_work-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// ln(d) ln(N), or 1/sqrt(d): what a row's dot products are multiplied by.
double ScoreScale(const AttentionSpec& spec, size_t head_dim, int num_keys) {
  const double dim = static_cast<double>(head_dim);
  return spec.IsLengthScaled() ? std::log(dim) * std::log(static_cast<double>(num_keys))
                               : 1.0 / std::sqrt(dim);
}

// Rows of q times their scales, interleaved by groups; rows of padding are zero.
template <typename T>
void ScaleQueries(const Work<T>& work) {
  const size_t head_dim = work.HeadDim();
  const size_t group_rows = work.item.num_rows == 1 ? 1 : Size(kGroupRows);
  for (int row = 0; row < work.item.PaddedRows(); ++row) {
    float* to =
        work.task.q + Size(row) / group_rows * group_rows * head_dim + Size(row) % group_rows;
    if (row >= work.item.num_rows) {
      for (size_t dim = 0; dim < head_dim; ++dim) to[dim * group_rows] = 0.0f;
      continue;
    }
    const float* q = work.args.q + work.VectorIdx(row);
    const float scale =
        static_cast<float>(ScoreScale(work.args.spec, head_dim, work.item.NumKeys(row)));
    for (size_t dim = 0; dim < head_dim; ++dim) to[dim * group_rows] = scale * q[dim];
  }
}

// Where the tile's vectors of keys start. Vectors past the last key repeat its own: memory that is
// there, whose scores nobody reads.
template <typename T>
void FindTile(const HeadPages<T>& pages, int first_key, int num_keys, const T** vectors,
              const float** scales) {
  constexpr int kLanes = static_cast<int>(kScoreLanes);
  const int end = first_key + static_cast<int>(kTileKeys);
  if (end <= num_keys && pages.InOnePage(first_key, end - 1)) {
    const T* first = pages.Key(first_key);
    const float* first_scales = pages.KeyScales(first_key);
    for (size_t v = 0; v < kTileVectors; ++v) {
      vectors[v] = first + v * kScoreLanes;
      scales[v] = kHasScales<T> ? first_scales + v * kScoreLanes : nullptr;
    }
    return;
  }
  const int last = (num_keys - 1) / kLanes * kLanes;
  for (size_t v = 0; v < kTileVectors; ++v) {
    const int key = std::min(first_key + static_cast<int>(v) * kLanes, last);
    vectors[v] = pages.Key(key);
    scales[v] = pages.KeyScales(key);
  }
}

// How far ahead of a single row its keys are fetched, in bytes of keys; measured (README).
template <typename T>
constexpr size_t kBytesAhead = kHasScales<T> ? size_t{12} << 10 : size_t{8} << 10;

// Dot products of the item's single row with the tile's keys, to scores + first_key, while later
// keys are fetched. meanwhile(v): of each vector of the tile, as DotTile has it.
template <typename T, class Meanwhile>
void ScoreRowTile(const Work<T>& work, int first_key, const Meanwhile& meanwhile) {
  const T* vectors[kTileVectors];
  const float* scales[kTileVectors];
  FindTile(work.pages, first_key, work.item.MaxKeys(), vectors, scales);
  const size_t tile_bytes = kTileKeys * work.HeadDim() * sizeof(T);
  const size_t keys_ahead = std::max(size_t{1}, kBytesAhead<T> / tile_bytes) * kTileKeys;
  const T* ahead[kTileVectors];
  const float* scales_ahead[kTileVectors];
  FindTile(work.pages, first_key + static_cast<int>(keys_ahead), work.item.MaxKeys(), ahead,
           scales_ahead);
  for (size_t v = 0; kHasScales<T> && v < kTileVectors; ++v) hwy::Prefetch(scales_ahead[v]);
  float* scores = work.values.scores + first_key;
  for (size_t v = 0; v < kTileVectors; v += kRowVectors) {
    const KeyTile<T> keys{.vectors = vectors + v,
                          .stride = work.pages.KeyStride(),
                          .scales = kHasScales<T> ? scales + v : nullptr,
                          .ahead = ahead + v};
    DotTile<1, kRowVectors>(work.task.q, work.HeadDim(), keys, scores + v * kScoreLanes, 0,
                            [&](size_t i) { meanwhile(v + i); });
  }
}

// Dot products of all the item's rows with the tile's keys, to scores + first_key. The keys are
// widened once for all rows.
template <typename T>
void ScoreBlockTile(const Work<T>& work, int first_key) {
  const ScoreTag d;
  const size_t head_dim = work.HeadDim();
  const size_t stride = work.pages.KeyStride();
  const T* vectors[kTileVectors];
  const float* scales[kTileVectors];
  FindTile(work.pages, first_key, work.item.MaxKeys(), vectors, scales);
  for (size_t dim = 0; dim < head_dim; ++dim) {
    for (size_t v = 0; v < kTileVectors; ++v) {
      hn::StoreU(LoadWide(vectors[v] + dim * stride), d,
                 work.task.tile + dim * kTileKeys + v * kScoreLanes);
    }
  }
  float* scores = work.values.scores + first_key;
  for (size_t v = 0; v < kTileVectors; v += kGroupVectors) {
    const float* wide[kGroupVectors];
    for (size_t i = 0; i < kGroupVectors; ++i) wide[i] = work.task.tile + (v + i) * kScoreLanes;
    const KeyTile<float> keys{
        .vectors = wide,
        .stride = kTileKeys,
        .scales = kHasScales<T> ? scales + v : nullptr,
    };
    for (size_t row = 0; row < Size(work.item.PaddedRows()); row += Size(kGroupRows)) {
      DotTile<Size(kGroupRows), kGroupVectors>(
          work.task.q + row * head_dim, head_dim, keys,
          scores + row * work.values.row_stride + v * kScoreLanes, work.values.row_stride,
          [](size_t) {});
    }
  }
}

// Adds a chunk to its split's sum and maximum.
template <typename T>
void AddChunk(const Work<T>& work, size_t at_split, const ChunkStats& stats) {
  work.values.sum[at_split] += stats.Sum();
  work.values.max[at_split] = std::max(work.values.max[at_split], stats.Max());
}

// Score for a single row. A tile's softplus is arithmetic alone: it runs between the dot products
// of the next one, so that memory never waits for it.
template <typename T>
void ScoreRow(const Work<T>& work, int split) {
  constexpr int kTile = static_cast<int>(kTileKeys);
  const bool is_softmax = work.args.spec.kind == AttentionKind::kSoftmax;
  const float least = is_softmax ? kLeastScore : kLeastSoftplus;
  const size_t at = work.values.AtSplit(0, split);
  float* const scores = work.values.scores;
  const int first = split * kSplitKeys;
  const int end = std::min(work.item.MaxKeys(), first + kSplitKeys);
  ChunkStats stats;
  stats.Reset(least);
  for (int key = first; key < end; key += kTile) {
    ScoreRowTile(work, key, [&](size_t v) {
      if (key == first) return;
      float* before = scores + (key - kTile) + v * kScoreLanes;
      TakeScores(is_softmax, before, kScoreLanes, kScoreLanes, stats);
    });
    if (key % kChunkKeys != 0 || key == first) continue;
    AddChunk(work, at, stats);
    stats.Reset(least);
  }
  const int last = (end - 1) / kTile * kTile;
  TakeScores(is_softmax, scores + last, Size(end - last), kTileKeys, stats);
  AddChunk(work, at, stats);
}

// Score for a block of rows, chunk by chunk.
template <typename T>
void ScoreBlock(const Work<T>& work, int split) {
  const AttentionItem& item = work.item;
  const ItemValues& values = work.values;
  const bool is_softmax = work.args.spec.kind == AttentionKind::kSoftmax;
  const int end = std::min(item.MaxKeys(), (split + 1) * kSplitKeys);
  for (int chunk = split * kSplitKeys; chunk < end; chunk += kChunkKeys) {
    ChunkStats stats[kBlockRows];
    for (int row = 0; row < item.num_rows; ++row) {
      stats[row].Reset(is_softmax ? kLeastScore : kLeastSoftplus);
    }
    const int chunk_end = std::min(end, chunk + kChunkKeys);
    for (int key = chunk; key < chunk_end; key += static_cast<int>(kTileKeys)) {
      ScoreBlockTile(work, key);
      for (int row = 0; row < item.num_rows; ++row) {
        const int count = std::clamp(item.NumKeys(row) - key, 0, static_cast<int>(kTileKeys));
        TakeScores(is_softmax, values.Scores(row) + key, Size(count), kTileKeys, stats[row]);
      }
    }
    for (int row = 0; row < item.num_rows; ++row) {
      AddChunk(work, values.AtSplit(row, split), stats[row]);
    }
  }
}

// Score: K of one split, once; softplus scores, their sum and maximum.
template <typename T>
void Score(const Work<T>& work, int split) {
  for (int row = 0; row < work.item.num_rows; ++row) {
    work.values.sum[work.values.AtSplit(row, split)] = 0;
    work.values.max[work.values.AtSplit(row, split)] = std::numeric_limits<float>::lowest();
  }
  if (work.item.num_rows == 1) {
    ScoreRow(work, split);
  } else {
    ScoreBlock(work, split);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
