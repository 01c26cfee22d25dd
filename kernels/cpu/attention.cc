// Attention in its three stages, Score -> Reduce -> Weigh, for decode and prefill alike: an item is
// some adjacent query rows of one sequence in one head (attention_plan.h).
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/check.h"
#include "kernels/reference/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t Size(int count) { return static_cast<size_t>(count); }

// Where one sequence's keys and values of one head lie.
template <typename T>
class HeadPages {
 public:
  HeadPages(const AttentionArgs& args, const AttentionItem& item)
      : layout_(args.kv.layout),
        pages_(item.sequence->pages.data()),
        k_(static_cast<const T*>(args.kv.k)),
        v_(static_cast<const T*>(args.kv.v)),
        layer_(args.layer),
        head_(item.head),
        page_shift_(std::countr_zero(static_cast<unsigned>(layout_.page_tokens))) {}

  // The key's element of dim 0; the next dim's is KeyStride() further.
  const T* Key(int key) const { return k_ + Block(key) + layout_.KeyIndex(Slot(key), 0); }
  size_t HeadDim() const { return Size(layout_.head_dim); }
  size_t ValueBytes() const { return HeadDim() * sizeof(T); }
  size_t KeyStride() const { return Size(layout_.page_tokens); }
  const T* Value(int key) const { return v_ + Block(key) + layout_.ValueIndex(Slot(key), 0); }

 private:
  size_t Block(int key) const {
    return layout_.BlockIndex(layer_, pages_[key >> page_shift_], head_);
  }
  int Slot(int key) const { return key & (layout_.page_tokens - 1); }

  const KvLayout& layout_;
  const int32_t* pages_;
  const T* k_;
  const T* v_;
  int layer_;
  int head_;
  int page_shift_;
};

// A thread's own scratch for one task.
template <typename T>
struct TaskScratch {
  TaskScratch(const AttentionItem& item, int head_dim, float* scratch)
      : q(scratch),
        tile(q + Size(item.PaddedRows()) * Size(head_dim)),
        values(reinterpret_cast<const T**>(tile + kTileKeys * Size(head_dim))),
        keys(reinterpret_cast<int32_t*>(values + kSplitKeys)),
        rest(reinterpret_cast<float*>(keys + kSplitKeys + kScoreLanes)) {}

  static size_t NumFloats(const AttentionItem& item, int head_dim) {
    return (Size(item.PaddedRows()) + kTileKeys) * Size(head_dim) +
           Size(kSplitKeys) * (sizeof(void*) / sizeof(float)) + Size(kSplitKeys) + kScoreLanes;
  }

  float* q;          // scaled, [group][dim][row of the group]
  float* tile;       // keys, widened, [dim][kTileKeys]
  const T** values;  // of a list of surviving keys
  int32_t* keys;
  float* rest;  // what NumFloats does not count
};

// ln(d) ln(N), or 1/sqrt(d): what a row's dot products are multiplied by.
float ScoreScale(const AttentionSpec& spec, int head_dim, int num_keys) {
  const double dim = head_dim;
  return static_cast<float>(spec.IsLengthScaled() ? std::log(dim) * std::log(double(num_keys))
                                                  : 1.0 / std::sqrt(dim));
}

// Rows of q times their scales, interleaved by groups; rows of padding are zero.
void ScaleQueries(const AttentionArgs& args, const AttentionItem& item, float* scaled) {
  const size_t head_dim = Size(args.kv.layout.head_dim);
  const size_t group_rows = item.num_rows == 1 ? 1 : Size(kGroupRows);
  for (int row = 0; row < item.PaddedRows(); ++row) {
    float* to = scaled + Size(row) / group_rows * group_rows * head_dim + Size(row) % group_rows;
    if (row >= item.num_rows) {
      for (size_t dim = 0; dim < head_dim; ++dim) to[dim * group_rows] = 0.0f;
      continue;
    }
    const size_t batch_row = Size(item.sequence->first_row + item.first_row + row);
    const float* q =
        args.q + (batch_row * Size(args.kv.layout.num_heads) + Size(item.head)) * head_dim;
    const float scale = ScoreScale(args.spec, args.kv.layout.head_dim, item.NumKeys(row));
    for (size_t dim = 0; dim < head_dim; ++dim) to[dim * group_rows] = scale * q[dim];
  }
}

// Where the tile's vectors of keys start. Vectors past the last key repeat its own: memory that is
// there, whose scores nobody reads.
template <typename T>
void FindTile(const HeadPages<T>& pages, int first_key, int num_keys, const T** vectors) {
  constexpr int kLanes = static_cast<int>(kScoreLanes);
  const int last = (num_keys - 1) / kLanes * kLanes;
  for (size_t v = 0; v < kTileVectors; ++v) {
    vectors[v] = pages.Key(std::min(first_key + static_cast<int>(v) * kLanes, last));
  }
}

// Dot products of all the item's rows with the tile's keys, to scores + first_key.
template <typename T>
void ScoreTile(const HeadPages<T>& pages, const AttentionItem& item, size_t head_dim, int first_key,
               const TaskScratch<T>& task, const ItemValues& values) {
  const ScoreTag d;
  const T* vectors[kTileVectors];
  FindTile(pages, first_key, item.MaxKeys(), vectors);
  const size_t stride = pages.KeyStride();
  float* scores = values.scores + first_key;
  if (item.num_rows == 1) {
    const T* ahead[kTileVectors];
    FindTile(pages, first_key + static_cast<int>(kTileKeys), item.MaxKeys(), ahead);
    for (size_t v = 0; v < kTileVectors; v += kRowVectors) {
      DotTile<1, kRowVectors>(task.q, head_dim, vectors + v, stride, ahead + v,
                              scores + v * kScoreLanes, 0);
    }
    return;
  }
  for (size_t dim = 0; dim < head_dim; ++dim) {
    for (size_t v = 0; v < kTileVectors; ++v) {
      hn::StoreU(LoadWide(vectors[v] + dim * stride), d,
                 task.tile + dim * kTileKeys + v * kScoreLanes);
    }
  }
  for (size_t v = 0; v < kTileVectors; v += kGroupVectors) {
    const float* keys[kGroupVectors];
    for (size_t i = 0; i < kGroupVectors; ++i) keys[i] = task.tile + (v + i) * kScoreLanes;
    for (size_t row = 0; row < Size(item.PaddedRows()); row += Size(kGroupRows)) {
      DotTile<Size(kGroupRows), kGroupVectors, float>(
          task.q + row * head_dim, head_dim, keys, kTileKeys, nullptr,
          scores + row * values.row_stride + v * kScoreLanes, values.row_stride);
    }
  }
}

// Score: K of one split, once; softplus scores, their sum and maximum.
template <typename T>
void Score(const AttentionArgs& args, const AttentionItem& item, int split,
           const TaskScratch<T>& task, const ItemValues& values) {
  const HeadPages<T> pages(args, item);
  const bool is_softmax = args.spec.kind == AttentionKind::kSoftmax;
  for (int row = 0; row < item.num_rows; ++row) {
    values.sum[values.AtSplit(row, split)] = 0;
    values.max[values.AtSplit(row, split)] = std::numeric_limits<float>::lowest();
  }
  const int end = std::min(item.MaxKeys(), (split + 1) * kSplitKeys);
  for (int chunk = split * kSplitKeys; chunk < end; chunk += kChunkKeys) {
    const int chunk_end = std::min(end, chunk + kChunkKeys);
    for (int key = chunk; key < chunk_end; key += static_cast<int>(kTileKeys)) {
      ScoreTile(pages, item, Size(args.kv.layout.head_dim), key, task, values);
    }
    for (int row = 0; row < item.num_rows; ++row) {
      const int count = std::clamp(item.NumKeys(row) - chunk, 0, kChunkKeys);
      float* scores = values.Scores(row) + chunk;
      const ChunkStats stats =
          is_softmax ? MaxOfChunk(scores, Size(count)) : SoftplusChunk(scores, Size(count));
      const size_t at = values.AtSplit(row, split);
      values.sum[at] += stats.sum;
      values.max[at] = std::max(values.max[at], stats.max);
    }
  }
}

// Reduce: a row's sum and maximum over its splits, and the rule of its weights that follows.
RowRule Reduce(const AttentionArgs& args, const AttentionItem& item, int row,
               const ItemValues& values) {
  double sum = 0;
  float max = std::numeric_limits<float>::lowest();
  for (int split = 0; split < item.NumSplits(); ++split) {
    sum += values.sum[values.AtSplit(row, split)];
    max = std::max(max, values.max[values.AtSplit(row, split)]);
  }
  return ReduceRow(args.spec.kind, item.NumKeys(row), max, sum);
}

// The surviving keys in [begin, end) of the group of rows from `row` on, and where their values
// lie.
template <size_t kRows, typename T>
ValueList<T> ListValues(const HeadPages<T>& pages, const AttentionItem& item, int row, int begin,
                        int end, const TaskScratch<T>& task, const ItemValues& values) {
  const size_t count =
      ListKeys<kRows>(values.Scores(row), values.row_stride, Size(begin), Size(end), task.keys);
  // Survivors far apart are cache misses that no hardware prefetcher foresees.
  const bool is_sparse = kRows == 1 && 2 * count < Size(end - begin);
  for (size_t i = 0; i < count; ++i) {
    task.values[i] = pages.Value(task.keys[i]);
    if (!is_sparse) continue;
    const char* bytes = reinterpret_cast<const char*>(task.values[i]);
    for (size_t at = 0; at < pages.ValueBytes(); at += 64) hwy::Prefetch(bytes + at);
  }
  size_t num_common = count;
  while (num_common > 0 && task.keys[num_common - 1] >= item.NumKeys(row)) --num_common;
  return {.keys = task.keys, .values = task.values, .count = count, .num_common = num_common};
}

// Adds the values of the group's surviving keys in [begin, end), times their weights, to the
// group's partial sums, chunk by chunk.
template <size_t kRows, typename T>
void SumGroup(const HeadPages<T>& pages, const AttentionItem& item, int row, int begin, int end,
              const TaskScratch<T>& task, const ItemValues& values, float* partial) {
  const ValueList<T> all = ListValues<kRows>(pages, item, row, begin, end, task, values);
  size_t first = 0;
  for (int chunk = begin; chunk < end; chunk += kChunkKeys) {
    size_t last = first;
    while (last < all.count && all.keys[last] < chunk + kChunkKeys) ++last;
    if (last == first) continue;
    const ValueList<T> list{.keys = all.keys + first,
                            .values = all.values + first,
                            .count = last - first,
                            .num_common = std::clamp(all.num_common, first, last) - first};
    SumValuesOfHead<kRows>(list, values.Scores(row), values.row_stride, pages.HeadDim(), partial,
                           values.padded_dim);
    first = last;
  }
}

// Weigh: scores of one split to weights, and the values that have one; sums of both.
template <typename T>
void Weigh(const AttentionArgs& args, const AttentionItem& item, int split,
           const Sharpener& sharpener, const TaskScratch<T>& task, const ItemValues& values) {
  const HeadPages<T> pages(args, item);
  RowRule rules[kBlockRows];
  for (int row = 0; row < item.num_rows; ++row) {
    rules[row] = Reduce(args, item, row, values);
    values.weight_sum[values.AtSplit(row, split)] = 0;
    values.num_read[values.AtSplit(row, split)] = 0;
  }
  std::fill_n(values.Partial(0, split), Size(item.PaddedRows()) * values.padded_dim, 0.0f);

  // A single row lists the survivors of the whole split first, so that their values are on the way
  // while it does; a block goes chunk by chunk, whose values then stay in L1 from group to group.
  const int run_keys = item.num_rows == 1 ? kSplitKeys : kChunkKeys;
  const int split_end = std::min(item.MaxKeys(), (split + 1) * kSplitKeys);
  for (int begin = split * kSplitKeys; begin < split_end; begin += run_keys) {
    const int end =
        std::min((split_end + kChunkKeys - 1) / kChunkKeys * kChunkKeys, begin + run_keys);
    for (int row = 0; row < item.num_rows; ++row) {
      const size_t at = values.AtSplit(row, split);
      for (int chunk = begin; chunk < end; chunk += kChunkKeys) {
        const int count = std::clamp(item.NumKeys(row) - chunk, 0, kChunkKeys);
        values.weight_sum[at] += WeighChunk(rules[row], sharpener, values.Scores(row) + chunk,
                                            Size(count), values.num_read[at]);
      }
    }
    for (int row = item.num_rows; row < item.PaddedRows(); ++row) {
      std::fill(values.Scores(row) + begin, values.Scores(row) + end, 0.0f);
    }
    if (item.num_rows == 1) {
      SumGroup<1>(pages, item, 0, begin, end, task, values, values.Partial(0, split));
      continue;
    }
    for (int row = 0; row < item.num_rows; row += kGroupRows) {
      SumGroup<Size(kGroupRows)>(pages, item, row, begin, end, task, values,
                                 values.Partial(row, split));
    }
  }
}

// A row that fp32 cannot weigh, by the definition.
void AttendExactly(const AttentionArgs& args, const AttentionItem& item, int row, size_t first,
                   const ItemValues& values) {
  AttentionCounters counters;
  ReferenceAttendRow(args, *item.sequence, item.head, item.NumKeys(row), args.q + first,
                     args.out + first, counters);
  values.num_read[values.AtSplit(row, 0)] = counters.num_value_rows_read;
}

// out = sum of u^p v / sum of u^p, splits added in order.
void Merge(const AttentionArgs& args, const AttentionItem& item, const ItemValues& values) {
  const size_t head_dim = Size(args.kv.layout.head_dim);
  for (int row = 0; row < item.num_rows; ++row) {
    const size_t batch_row = Size(item.sequence->first_row + item.first_row + row);
    const size_t first = (batch_row * Size(args.kv.layout.num_heads) + Size(item.head)) * head_dim;
    if (Reduce(args, item, row, values).rule == WeightRule::kExact) {
      AttendExactly(args, item, row, first, values);
      continue;
    }
    float* out = args.out + first;
    double weight_sum = 0;
    std::fill_n(out, head_dim, 0.0f);  // +0 first: a sum that is -0 in one chunking is +0 in all
    for (int split = 0; split < item.NumSplits(); ++split) {
      weight_sum += values.weight_sum[values.AtSplit(row, split)];
      const float* partial = values.Partial(row, split);
      for (size_t dim = 0; dim < head_dim; ++dim) out[dim] += partial[dim];
    }
    const float inverse = static_cast<float>(1.0 / weight_sum);
    for (size_t dim = 0; dim < head_dim; ++dim) out[dim] *= inverse;
  }
}

// The op over pages of element T.
template <typename T>
class AttentionRun {
 public:
  AttentionRun(const AttentionArgs& args, const AttentionPlan& plan, Scratch& scratch)
      : args_(args),
        plan_(plan),
        scratch_(scratch),
        shared_(scratch.Shared<float>(plan.num_shared_floats)),
        head_dim_(args.kv.layout.head_dim),
        sharpener_(args.spec.p) {}

  // A whole item, or Score of one split.
  void RunFirst(const AttentionTask& at, int thread_idx) const {
    const AttentionItem& item = plan_.items[Size(at.item_idx)];
    const TaskScratch<T> task = ScratchFor(item, thread_idx);
    const ItemValues values(item, head_dim_,
                            item.is_shared ? shared_ + item.shared_idx : task.rest);
    ScaleQueries(args_, item, task.q);
    if (item.is_shared) {
      Score(args_, item, at.split, task, values);
      return;
    }
    for (int split = 0; split < item.NumSplits(); ++split) Score(args_, item, split, task, values);
    for (int split = 0; split < item.NumSplits(); ++split) {
      Weigh(args_, item, split, sharpener_, task, values);
    }
    Merge(args_, item, values);
    Count(item, values);
  }

  void RunWeigh(const AttentionTask& at, int thread_idx) const {
    const AttentionItem& item = plan_.items[Size(at.item_idx)];
    Weigh(args_, item, at.split, sharpener_, ScratchFor(item, thread_idx), SharedValues(item));
  }

  void RunMerge(int item_idx) const {
    const AttentionItem& item = plan_.items[Size(item_idx)];
    Merge(args_, item, SharedValues(item));
    Count(item, SharedValues(item));
  }

 private:
  TaskScratch<T> ScratchFor(const AttentionItem& item, int thread_idx) const {
    const size_t own = item.is_shared ? 0 : ItemValues::NumFloats(item, head_dim_);
    const size_t num_floats = TaskScratch<T>::NumFloats(item, head_dim_) + own;
    return TaskScratch<T>(item, head_dim_, scratch_.OfThread<float>(thread_idx, num_floats));
  }
  ItemValues SharedValues(const AttentionItem& item) const {
    return ItemValues(item, head_dim_, shared_ + item.shared_idx);
  }

  // Items of one sequence may end at the same time in several threads.
  void Count(const AttentionItem& item, const ItemValues& values) const {
    if (args_.counters == nullptr) return;
    int64_t num_rows = 0, num_read = 0;
    for (int row = 0; row < item.num_rows; ++row) {
      num_rows += item.NumKeys(row);
      for (int split = 0; split < item.NumSplits(); ++split) {
        num_read += values.num_read[values.AtSplit(row, split)];
      }
    }
    AttentionCounters& counters = args_.counters[Size(item.sequence_idx)];
    std::atomic_ref(counters.num_value_rows).fetch_add(num_rows, std::memory_order_relaxed);
    std::atomic_ref(counters.num_value_rows_read).fetch_add(num_read, std::memory_order_relaxed);
  }

  const AttentionArgs& args_;
  const AttentionPlan& plan_;
  Scratch& scratch_;
  float* shared_;
  int head_dim_;
  Sharpener sharpener_;
};

template <typename T>
void RunAttention(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                  const AttentionPlan& plan) {
  const AttentionRun<T> run(args, plan, scratch);
  pool.ParallelFor(static_cast<int64_t>(plan.first_tasks.size()), [&](int64_t i, int thread_idx) {
    run.RunFirst(plan.first_tasks[static_cast<size_t>(i)], thread_idx);
  });
  pool.ParallelFor(static_cast<int64_t>(plan.split_tasks.size()), [&](int64_t i, int thread_idx) {
    run.RunWeigh(plan.split_tasks[static_cast<size_t>(i)], thread_idx);
  });
  pool.ParallelFor(static_cast<int64_t>(plan.shared_items.size()), [&](int64_t i, int) {
    run.RunMerge(plan.shared_items[static_cast<size_t>(i)]);
  });
}

void AttentionOfTarget(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                       const AttentionPlan& plan) {
  switch (args.kv.layout.dtype) {
    case DType::kF32: return RunAttention<float>(args, pool, scratch, plan);
    case DType::kF16: return RunAttention<hwy::float16_t>(args, pool, scratch, plan);
    case DType::kBF16: return RunAttention<hwy::bfloat16_t>(args, pool, scratch, plan);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(AttentionOfTarget);

void AttentionOnCpu(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                    AttentionPlan& plan) {
  const KvLayout& layout = args.kv.layout;
  LSSAR_CHECK(args.rows != nullptr && args.q != nullptr && args.out != nullptr);
  LSSAR_CHECK(args.q != args.out);
  LSSAR_CHECK(layout.head_dim >= 1 && layout.num_heads >= 1);
  LSSAR_CHECK(args.layer >= 0 && args.layer < layout.num_layers);
  LSSAR_CHECK(std::has_single_bit(static_cast<unsigned>(layout.page_tokens)));
  LSSAR_CHECK(layout.page_tokens >= kMinPageTokens && layout.page_tokens <= kMaxPageTokens);
  for (const SequenceRows& sequence : args.rows->sequences) {
    LSSAR_CHECK(sequence.num_rows >= 1 && sequence.first_position >= 0);
    LSSAR_CHECK(sequence.pages.size() >=
                static_cast<size_t>(layout.PagesFor(sequence.first_position + sequence.num_rows)));
  }
  PlanAttention(args, pool.NumThreads(), plan);
  HWY_DYNAMIC_DISPATCH(AttentionOfTarget)(args, pool, scratch, plan);
}

}  // namespace lssar
#endif  // HWY_ONCE
