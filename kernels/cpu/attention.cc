// Attention in three stages, Score -> Reduce -> Weigh, for decode and prefill. An item is a few
// rows that read the same keys (attention_plan.h).
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/attention_math.h"
#include "kernels/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/attention_score-inl.h"
#include "kernels/cpu/attention_work-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// phi in double of the row's keys in [chunk, chunk + count); e^(score - max) if phi is e^s.
template <typename T>
void ExactChunk(const Work<T>& work, int row, int chunk, int count, double* phi) {
  const AttentionSpec& spec = work.args.spec;
  const int num_keys = work.item.NumKeys(row);
  const float* q = work.args.q + work.VectorIdx(row);
  const double scale = ScaleOf(spec, work.args.kv.layout.head_dim, num_keys);
  double shift = ShiftOf(spec, num_keys);
  if (spec.Form().phi == Phi::kExp) shift -= double{work.weightings[row].max};
  for (int key = 0; key < count; key += kExactKeys) {
    ExactDots(q, work.HeadDim(), work.kv.Key(chunk + key), work.kv.KeyStride(),
              work.kv.KeyScales(chunk + key), phi + key);
  }
  for (int key = 0; key < count; ++key) phi[key] = PhiOf(spec.Form().phi, scale * phi[key] + shift);
}

// Reduce: the sum and maximum of each row over its splits, and from them the row's weighting.
template <typename T>
void Reduce(Work<T>& work) {
  const ItemValues& values = work.values;
  const bool is_exp = work.args.spec.Form().phi == Phi::kExp;
  for (int row = 0; row < work.item.num_rows; ++row) {
    float max = std::numeric_limits<float>::lowest();
    for (int split = 0; split < work.item.NumSplits(); ++split) {
      max = std::max(max, values.max[values.AtSplit(row, split)]);
    }
    double sum = 0;
    for (int split = 0; split < work.item.NumSplits(); ++split) {
      const size_t at = values.AtSplit(row, split);
      sum += values.sum[at] * (is_exp ? std::exp(double{values.max[at]} - double{max}) : 1.0);
    }
    const int num_keys = work.item.NumKeys(row);
    work.weightings[row] = ReduceRow(work.args.spec, num_keys, max, sum);
    if (work.weightings[row].rule != WeightRule::kRatio) continue;

    double exact_sum = 0, exact_max = 0;
    double phi[kChunkKeys];
    for (int chunk = 0; chunk < num_keys; chunk += kChunkKeys) {
      const int count = std::min(num_keys - chunk, kChunkKeys);
      ExactChunk(work, row, chunk, count, phi);
      for (int key = 0; key < count; ++key) {
        exact_sum += phi[key];
        exact_max = std::max(exact_max, phi[key]);
      }
    }
    ReduceFlatRow(work.args.spec, num_keys, exact_max, exact_sum, &work.weightings[row]);
  }
}

// Replaces a row's phi of one chunk by its weights.
template <typename T>
void WeighRow(const Work<T>& work, int row, int split, int chunk, const ReweightPower& power) {
  const int count = std::clamp(work.item.NumKeys(row) - chunk, 0, kChunkKeys);
  const RowWeighting& weighting = work.weightings[row];
  float* scores = work.values.Scores(row) + chunk;
  if (weighting.rule == WeightRule::kRatio) {
    double phi[kChunkKeys];
    ExactChunk(work, row, chunk, count, phi);
    for (int key = 0; key < count; ++key) {
      const double x = weighting.exact_gain * phi[key] - double{weighting.offset};
      scores[key] = float(x / weighting.exact_peak);
    }
  }
  const size_t at = work.values.AtSplit(row, split);
  work.values.weight_sum[at] +=
      WeighChunk(weighting, power, scores, Size(count), &work.values.num_read[at]);
}

// Lists the chunk's keys with a non-zero weight in the group of rows that starts at `row`, and the
// addresses of their values. Appends to the first `num_listed` keys of the task's lists.
// kPrefetches: for the values of a decode step, which are scattered: no hardware prefetcher
// predicts them.
template <size_t kRows, bool kPrefetches, typename T>
ValueList<T> ListValues(const Work<T>& work, int row, int chunk, size_t num_listed) {
  int32_t* keys = work.task.keys + num_listed;
  const T** values = work.task.values + num_listed;
  const size_t count =
      ListKeys<kRows>(work.Weights(row), Size(chunk), Size(chunk + kChunkKeys), keys);
  for (size_t i = 0; i < count; ++i) {
    values[i] = work.kv.Value(keys[i]);
    if (!kPrefetches) continue;
    if (kHasScales<T>) hwy::Prefetch(work.kv.ValueScales(keys[i]));
    const char* bytes = reinterpret_cast<const char*>(values[i]);
    for (size_t at = 0; at < work.HeadDim() * sizeof(T); at += 64) hwy::Prefetch(bytes + at);
  }
  size_t num_for_all = count;
  while (num_for_all > 0 && keys[num_for_all - 1] >= work.item.NumKeys(row)) --num_for_all;
  return {.keys = keys, .values = values, .count = count, .num_for_all = num_for_all};
}

// Multiplies a row's weights of one chunk by the scales of their values, if elements have scales.
// One rounding, the same in a single row and in a block.
template <typename T>
void ScaleChunk(const Work<T>& work, int row, int chunk) {
  if constexpr (kHasScales<T>) {
    float* weights = work.values.Scores(row);
    const int end = std::min(work.item.NumKeys(row), chunk + kChunkKeys);
    for (int key = chunk; key < end; key += int(kScoreLanes)) {
      ScaleWeights(weights + key, work.kv.ValueScales(key));
    }
  }
}

// Weigh of a group of a decode item's rows. The values of a chunk are prefetched while the next two
// chunks are weighed.
template <size_t kRows, typename T>
void WeighDecodeRows(const Work<T>& work, int first_row, int split, int end,
                     const ReweightPower& power) {
  constexpr int kChunksAhead = 2;
  const Rows<float> sums{work.values.Partial(first_row, split), work.values.padded_dim};
  ValueList<T> lists[kSplitKeys / kChunkKeys];
  size_t num_listed = 0;
  const int first = split * kSplitKeys;
  for (int chunk = first; chunk < end + kChunksAhead * kChunkKeys; chunk += kChunkKeys) {
    if (chunk < end) {
      for (int row = 0; row < int(kRows); ++row) {
        WeighRow(work, first_row + row, split, chunk, power);
      }
      ValueList<T>& list = lists[(chunk - first) / kChunkKeys];
      list = ListValues<kRows, true>(work, first_row, chunk, num_listed);
      num_listed += list.count;
    }
    const int ready = chunk - kChunksAhead * kChunkKeys;
    if (ready < first) continue;
    for (int row = 0; row < int(kRows); ++row) ScaleChunk(work, first_row + row, ready);
    SumValuesOfHead<kRows>(lists[(ready - first) / kChunkKeys], work.Weights(first_row),
                           work.HeadDim(), sums);
  }
}

// Weigh of a decode step. Later groups find most values in L2.
template <typename T>
void WeighDecode(const Work<T>& work, int split, int end, const ReweightPower& power) {
  for (int row = 0; row < work.item.num_rows; row += kGroupRows) {
    switch (work.item.GroupRows(row)) {
      case 1: WeighDecodeRows<1>(work, row, split, end, power); break;
      case 2: WeighDecodeRows<2>(work, row, split, end, power); break;
      case 3: WeighDecodeRows<3>(work, row, split, end, power); break;
      default: WeighDecodeRows<4>(work, row, split, end, power); break;
    }
  }
}

// Weigh of a block, by chunk: the values stay in L1 from group to group.
template <typename T>
void WeighBlock(const Work<T>& work, int split, int end, const ReweightPower& power) {
  const AttentionItem& item = work.item;
  const ItemValues& values = work.values;
  for (int chunk = split * kSplitKeys; chunk < end; chunk += kChunkKeys) {
    for (int row = 0; row < item.num_rows; ++row) {
      WeighRow(work, row, split, chunk, power);
      ScaleChunk(work, row, chunk);
    }
    for (int row = item.num_rows; row < item.PaddedRows(); ++row) {
      std::fill_n(values.Scores(row) + chunk, kChunkKeys, 0.0f);
    }
    for (int row = 0; row < item.num_rows; row += kGroupRows) {
      const ValueList<T> list = ListValues<Size(kGroupRows), false>(work, row, chunk, 0);
      if (list.count == 0) continue;
      SumValuesOfHead<Size(kGroupRows)>(list, work.Weights(row), work.HeadDim(),
                                        {values.Partial(row, split), values.padded_dim});
    }
  }
}

// Weigh: weights of one split from phi; sums of the weights and of the weighted values.
template <typename T>
void Weigh(const Work<T>& work, int split, const ReweightPower& power) {
  const AttentionItem& item = work.item;
  const ItemValues& values = work.values;
  for (int row = 0; row < item.num_rows; ++row) {
    values.weight_sum[values.AtSplit(row, split)] = 0;
    values.num_read[values.AtSplit(row, split)] = 0;
  }
  std::fill_n(values.Partial(0, split), Size(item.PaddedRows()) * values.padded_dim, 0.0f);

  const int num_chunks = (item.MaxKeys() + kChunkKeys - 1) / kChunkKeys;
  const int end = std::min(num_chunks * kChunkKeys, (split + 1) * kSplitKeys);
  if (item.is_decode) {
    WeighDecode(work, split, end, power);
  } else {
    WeighBlock(work, split, end, power);
  }
}

// out = sum of weights times v over their divisor (u^p: their sum). Splits are added in order.
template <typename T>
void Merge(const Work<T>& work) {
  const ItemValues& values = work.values;
  for (int row = 0; row < work.item.num_rows; ++row) {
    float* out = work.args.out + work.VectorIdx(row);
    double weight_sum = 0;
    // Starts at +0, so that a sum of zeros is +0 for every chunking.
    std::fill_n(out, work.HeadDim(), 0.0f);
    for (int split = 0; split < work.item.NumSplits(); ++split) {
      weight_sum += values.weight_sum[values.AtSplit(row, split)];
      const float* partial = values.Partial(row, split);
      for (size_t dim = 0; dim < work.HeadDim(); ++dim) out[dim] += partial[dim];
    }
    const float inverse = float(1.0 / DivisorOf(work.args.spec, weight_sum));
    for (size_t dim = 0; dim < work.HeadDim(); ++dim) out[dim] *= inverse;
  }
}

// Adds to the sequence's counters. Items of one sequence may end at the same time on several
// threads.
template <typename T>
void Count(const Work<T>& work) {
  if (work.args.counters == nullptr) return;
  int64_t num_rows = 0, num_read = 0;
  for (int row = 0; row < work.item.num_rows; ++row) {
    num_rows += work.item.NumKeys(row);
    for (int split = 0; split < work.item.NumSplits(); ++split) {
      num_read += work.values.num_read[work.values.AtSplit(row, split)];
    }
  }
  AttentionStats& counters = work.args.counters[work.item.sequence_idx];
  std::atomic_ref(counters.num_value_rows).fetch_add(num_rows, std::memory_order_relaxed);
  std::atomic_ref(counters.num_value_rows_read).fetch_add(num_read, std::memory_order_relaxed);
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
        power_(args.spec.p) {}

  // Computes a whole item, or Score of one split.
  void RunFirst(const AttentionTask& task, int thread_idx) const {
    Work<T> work = WorkOn(task.item_idx, thread_idx);
    ScaleQueries(work);
    if (work.item.is_shared) {
      Score(work, task.split);
      return;
    }
    for (int split = 0; split < work.item.NumSplits(); ++split) Score(work, split);
    Reduce(work);
    for (int split = 0; split < work.item.NumSplits(); ++split) Weigh(work, split, power_);
    Merge(work);
    Count(work);
  }

  // Every split repeats Reduce: a few additions cost less than waiting for another thread.
  void RunWeigh(const AttentionTask& task, int thread_idx) const {
    Work<T> work = WorkOn(task.item_idx, thread_idx);
    Reduce(work);
    Weigh(work, task.split, power_);
  }

  void RunMerge(int item_idx, int thread_idx) const {
    const Work<T> work = WorkOn(item_idx, thread_idx);
    Merge(work);
    Count(work);
  }

 private:
  Work<T> WorkOn(int item_idx, int thread_idx) const {
    const AttentionItem& item = plan_.items[Size(item_idx)];
    const int head_dim = args_.kv.layout.head_dim;
    const size_t own = item.is_shared ? 0 : ItemValues::NumFloats(item, head_dim);
    const TaskScratch<T> task(
        item, head_dim,
        scratch_.OfThread<float>(thread_idx, TaskScratch<T>::NumFloats(item, head_dim) + own));
    float* values = item.is_shared ? shared_ + item.shared_idx : task.rest;
    return {.args = args_,
            .item = item,
            .kv = KvHead<T>(args_, item),
            .task = task,
            .values = ItemValues(item, head_dim, values),
            .weightings = {}};
  }

  const AttentionArgs& args_;
  const AttentionPlan& plan_;
  Scratch& scratch_;
  float* shared_;
  ReweightPower power_;
};

template <typename T>
void RunAttention(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                  const AttentionPlan& plan) {
  const AttentionRun<T> run(args, plan, scratch);
  pool.ParallelFor(int64_t(plan.first_tasks.size()), [&](int64_t i, int thread_idx) {
    run.RunFirst(plan.first_tasks[size_t(i)], thread_idx);
  });
  pool.ParallelFor(int64_t(plan.split_tasks.size()), [&](int64_t i, int thread_idx) {
    run.RunWeigh(plan.split_tasks[size_t(i)], thread_idx);
  });
  pool.ParallelFor(int64_t(plan.shared_items.size()), [&](int64_t i, int thread_idx) {
    run.RunMerge(plan.shared_items[size_t(i)], thread_idx);
  });
}

void AttentionOfTarget(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                       const AttentionPlan& plan) {
  switch (args.kv.layout.dtype) {
    case DType::kF32: return RunAttention<float>(args, pool, scratch, plan);
    case DType::kF16: return RunAttention<hwy::float16_t>(args, pool, scratch, plan);
    case DType::kI8: return RunAttention<int8_t>(args, pool, scratch, plan);
    case DType::kBF16: break;
  }
  LSSAR_CHECK(false);  // FitLayout rejects the type
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(AttentionOfTarget);

void AttentionOnCpu(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                    AttentionPlan* plan) {
  const KvLayout& layout = args.kv.layout;
  LSSAR_CHECK(args.rows != nullptr && args.q != nullptr && args.out != nullptr);
  LSSAR_CHECK(args.q != args.out);
  LSSAR_CHECK(layout.head_dim >= 1 && layout.num_kv_heads >= 1);
  LSSAR_CHECK(args.num_heads >= 1 && args.num_heads % layout.num_kv_heads == 0);
  LSSAR_CHECK(layout.key_order == KeyOrder::kDimMajor);
  LSSAR_CHECK(args.layer >= 0 && args.layer < layout.num_layers);
  LSSAR_CHECK(std::has_single_bit(unsigned(layout.page_size)));
  LSSAR_CHECK(layout.page_size >= kMinPageSize && layout.page_size <= kMaxPageSize);
  for (const SequenceSlice& sequence : args.rows->sequences) {
    LSSAR_CHECK(sequence.num_rows >= 1 && sequence.first_position >= 0);
    LSSAR_CHECK(sequence.pages.size() >=
                size_t(layout.PagesFor(sequence.first_position + sequence.num_rows)));
  }
  PlanAttention(args, pool.NumThreads(), plan);
  HWY_DYNAMIC_DISPATCH(AttentionOfTarget)(args, pool, scratch, *plan);
}

}  // namespace lssar
#endif  // HWY_ONCE
