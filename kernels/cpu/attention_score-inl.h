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
#include "kernels/attention_stage_one.h"
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/attention_work-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

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
    const float scale = static_cast<float>(
        ScaleOf(work.args.spec, work.args.kv.layout.head_dim, work.item.NumKeys(row)));
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

template <typename T>
StageOne StageOneOf(const Work<T>& work, int row) {
  const AttentionSpec& spec = work.args.spec;
  return {.phi = spec.Form().phi,
          .shift = static_cast<float>(ShiftOf(spec, work.item.NumKeys(row)))};
}

// Adds a row's keys in [chunk, end) to their split's sum and maximum. A sum of e^s is one of
// e^(s - the split's maximum so far), and only stage 2 asks for it.
template <typename T>
void AddChunk(const Work<T>& work, int row, int chunk, int end, const ChunkStats& stats) {
  const size_t at = work.values.AtSplit(row, chunk / kSplitKeys);
  double& sum = work.values.sum[at];
  float& max = work.values.max[at];
  const float max_before = max;
  max = std::max(max_before, stats.Max());
  const AttentionForm form = work.args.spec.Form();
  if (form.phi != Phi::kExp) {
    sum += stats.Sum();
  } else if (form.reweights && end > chunk) {
    sum = sum * std::exp(double{max_before} - double{max}) +
          SumOfExp(work.values.Scores(row) + chunk, Size(end - chunk), max);
  }
}

// Score for a single row. A tile's phi is arithmetic alone: it runs between the dot products
// of the next one, so that memory never waits for it.
template <typename T>
void ScoreRow(const Work<T>& work, int split) {
  constexpr int kTile = static_cast<int>(kTileKeys);
  const StageOne stage = StageOneOf(work, 0);
  float* const scores = work.values.scores;
  const int first = split * kSplitKeys;
  const int end = std::min(work.item.MaxKeys(), first + kSplitKeys);
  ChunkStats stats;
  stats.Reset(stage.Least());
  for (int key = first; key < end; key += kTile) {
    ScoreRowTile(work, key, [&](size_t v) {
      if (key == first) return;
      float* before = scores + (key - kTile) + v * kScoreLanes;
      TakeScores(stage, before, kScoreLanes, kScoreLanes, stats);
    });
    if (key % kChunkKeys != 0 || key == first) continue;
    AddChunk(work, 0, key - kChunkKeys, key, stats);
    stats.Reset(stage.Least());
  }
  const int last = (end - 1) / kTile * kTile;
  TakeScores(stage, scores + last, Size(end - last), kTileKeys, stats);
  AddChunk(work, 0, last / kChunkKeys * kChunkKeys, end, stats);
}

// Score for a block of rows, chunk by chunk.
template <typename T>
void ScoreBlock(const Work<T>& work, int split) {
  const AttentionItem& item = work.item;
  const ItemValues& values = work.values;
  StageOne stages[kBlockRows];
  for (int row = 0; row < item.num_rows; ++row) stages[row] = StageOneOf(work, row);
  const int end = std::min(item.MaxKeys(), (split + 1) * kSplitKeys);
  for (int chunk = split * kSplitKeys; chunk < end; chunk += kChunkKeys) {
    ChunkStats stats[kBlockRows];
    for (int row = 0; row < item.num_rows; ++row) stats[row].Reset(stages[row].Least());
    const int chunk_end = std::min(end, chunk + kChunkKeys);
    for (int key = chunk; key < chunk_end; key += static_cast<int>(kTileKeys)) {
      ScoreBlockTile(work, key);
      for (int row = 0; row < item.num_rows; ++row) {
        const int count = std::clamp(item.NumKeys(row) - key, 0, static_cast<int>(kTileKeys));
        TakeScores(stages[row], values.Scores(row) + key, Size(count), kTileKeys, stats[row]);
      }
    }
    for (int row = 0; row < item.num_rows; ++row) {
      AddChunk(work, row, chunk, std::min(chunk_end, item.NumKeys(row)), stats[row]);
    }
  }
}

// Score: K of one split, once; phi of the scores, its sum and maximum.
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
