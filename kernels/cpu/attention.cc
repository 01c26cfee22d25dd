// Attention in three stages, Score -> Reduce -> Weigh, for decode and prefill. An item is a few
// rows that read the same keys (attention_plan.h).
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/attention_math.h"
#include "kernels/two_planes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_fixed-inl.h"
#include "kernels/cpu/attention_score-inl.h"
#include "kernels/cpu/attention_weigh-inl.h"
#include "kernels/cpu/attention_work-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
double MaxScore(const Work<T>& work, int row) {
  const int num_keys = work.item.NumKeys(row);
  double max = std::numeric_limits<double>::lowest();
  double scores[kChunkKeys];
  for (int chunk = 0; chunk < num_keys; chunk += kChunkKeys) {
    const int count = std::min(num_keys - chunk, kChunkKeys);
    ExactScores(work, row, chunk, count, scores);
    max = std::max(max, *std::max_element(scores, scores + count));
  }
  return max;
}

// Reduce: the sum and maximum of each row over its splits, and from them the row's rule.
template <typename T>
void Reduce(Work<T>& work) {
  const ItemValues& values = work.values;
  const AttentionForm form = work.args.spec.Form();
  const bool is_exp = form.phi == Phi::kExp;
  for (int row = 0; row < work.item.num_rows; ++row) {
    const int num_keys = work.item.NumKeys(row);
    const bool is_refined = kIsFixed<T> && num_keys > kShortRowKeys;
    const float* maxima = is_refined ? values.refined_max : values.max;
    float max = std::numeric_limits<float>::lowest();
    for (int split = 0; split < work.item.NumSplits(); ++split) {
      max = std::max(max, maxima[values.AtSplit(row, split)]);
    }
    double sum = 0;
    for (int split = 0; split < work.item.NumSplits(); ++split) {
      const size_t at = values.AtSplit(row, split);
      sum += values.sum[at] * (is_exp ? std::exp(double{values.max[at]} - double{max}) : 1.0);
    }
    const ReweightPower& power = *work.powers[row];
    work.rules[row] = ReduceRow(work.args.spec, power, num_keys, max, sum);
    if (!is_exp && IsExpRow(form, std::log(double{max}))) {
      WeightRule& rule = work.rules[row];
      rule.is_exp_row = true;
      rule.max = float(MaxScore(work, row));
      if (form.reweights) rule.kind = WeightKind::kRatio;
      if (form.reweights) rule.threshold = power.Floor();
    }
    if constexpr (kIsFixed<T>) {
      if (is_refined && RefineRuleOf(work, row).is_flat) {
        work.rules[row].kind = WeightKind::kRatio;
        work.rules[row].threshold = power.Floor();
      }
    }
    if (work.rules[row].kind != WeightKind::kRatio) continue;

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
    ReduceFlatRow(work.args.spec, num_keys, exact_max, exact_sum, &work.rules[row]);
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
        power_(args.spec.p) {
    for (const PowerStep& step : args.spec.steps) {
      LSSAR_CHECK(step.p.size() == 1 || step.p.size() == Size(args.num_heads));
      for (const double p : step.p) step_powers_.emplace_back(p);
    }
  }

  // Computes a whole item, or Score of one split.
  void RunFirst(const AttentionTask& task, int thread_idx) const {
    Work<T> work = WorkOn(task.item_idx, thread_idx);
    ReadQueries(work);
    if (work.item.is_shared) {
      Score(work, task.split);
      return;
    }
    for (int split = 0; split < work.item.NumSplits(); ++split) Score(work, split);
    if constexpr (kIsFixed<T>) {
      for (int split = 0; split < work.item.NumSplits(); ++split) Refine(work, split);
    }
    Reduce(work);
    for (int split = 0; split < work.item.NumSplits(); ++split) Weigh(work, split);
    Merge(work);
    Count(work);
  }

  // Fx16: the candidates of one split.
  void RunRefine(const AttentionTask& task, int thread_idx) const {
    if constexpr (kIsFixed<T>) {
      const Work<T> work = WorkOn(task.item_idx, thread_idx);
      ReadQueries(work);
      Refine(work, task.split);
    }
  }

  // Every split repeats Reduce: a few additions cost less than waiting for another thread.
  void RunWeigh(const AttentionTask& task, int thread_idx) const {
    Work<T> work = WorkOn(task.item_idx, thread_idx);
    if constexpr (kIsFixed<T>) ReadQueries(work);  // for flat rows
    Reduce(work);
    Weigh(work, task.split);
  }

  void RunMerge(int item_idx, int thread_idx) const {
    const Work<T> work = WorkOn(item_idx, thread_idx);
    Merge(work);
    Count(work);
  }

 private:
  static void ReadQueries(const Work<T>& work) {
    if constexpr (kIsFixed<T>) {
      FixQueries(work);
    } else {
      ScaleQueries(work);
    }
  }

  Work<T> WorkOn(int item_idx, int thread_idx) const {
    const AttentionItem& item = plan_.items[Size(item_idx)];
    const int head_dim = args_.kv.layout.head_dim;
    const size_t own = item.is_shared ? 0 : ItemValues::NumFloats(item, args_.kv.layout);
    const TaskScratch<T> task(
        item, head_dim,
        scratch_.OfThread<float>(thread_idx, TaskScratch<T>::NumFloats(item, head_dim) + own));
    float* values = item.is_shared ? shared_ + item.shared_idx : task.rest;
    Work<T> work{.args = args_,
                 .item = item,
                 .kv = KvHead<T>(args_, item),
                 .task = task,
                 .values = ItemValues(item, args_.kv.layout, values),
                 .rules = {},
                 .powers = {},
                 .slopes = {}};
    for (int row = 0; row < item.num_rows; ++row) {
      work.powers[row] = &PowerOf(work.Head(row), item.NumKeys(row));
    }
    for (int row = 0; args_.spec.has_alibi && row < item.num_rows; ++row) {
      work.slopes[row] = float(AlibiSlope(work.Head(row), args_.num_heads));
    }
    return work;
  }

  // As AttentionSpec::PowerOf.
  const ReweightPower& PowerOf(int head, int num_keys) const {
    const ReweightPower* power = &power_;
    const ReweightPower* first = step_powers_.data();  // of the step
    for (const PowerStep& step : args_.spec.steps) {
      if (step.min_keys > num_keys) break;
      power = first + (step.p.size() == 1 ? 0 : head);
      first += step.p.size();
    }
    return *power;
  }

  const AttentionArgs& args_;
  const AttentionPlan& plan_;
  Scratch& scratch_;
  float* shared_;
  ReweightPower power_;
  std::vector<ReweightPower> step_powers_;  // of each step, one after the other
};

template <typename T>
void RunAttention(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                  const AttentionPlan& plan) {
  const AttentionRun<T> run(args, plan, scratch);
  // A task that was left out leaves out those after it: the flag stays true.
  const auto for_each = [&](const auto& tasks, const auto& run_task) {
    pool.ParallelFor(std::ssize(tasks), [&](int64_t i, int thread_idx) {
      if (args.interrupt != nullptr && args.interrupt->load(std::memory_order_relaxed)) return;
      run_task(tasks[size_t(i)], thread_idx);
    });
  };
  for_each(plan.first_tasks,
           [&](const AttentionTask& task, int thread_idx) { run.RunFirst(task, thread_idx); });
  if constexpr (kIsFixed<T>) {
    for_each(plan.split_tasks,
             [&](const AttentionTask& task, int thread_idx) { run.RunRefine(task, thread_idx); });
  }
  for_each(plan.split_tasks,
           [&](const AttentionTask& task, int thread_idx) { run.RunWeigh(task, thread_idx); });
  for_each(plan.shared_items,
           [&](int item_idx, int thread_idx) { run.RunMerge(item_idx, thread_idx); });
}

void AttentionOfTarget(const AttentionArgs& args, ThreadPool& pool, Scratch& scratch,
                       const AttentionPlan& plan) {
  switch (args.kv.layout.dtype) {
    case DType::kF32: return RunAttention<float>(args, pool, scratch, plan);
    case DType::kF16: return RunAttention<hwy::float16_t>(args, pool, scratch, plan);
    case DType::kI8: return RunAttention<int8_t>(args, pool, scratch, plan);
    case DType::kFx16: return RunAttention<Fx16>(args, pool, scratch, plan);
    default: LSSAR_CHECK(false);  // FitLayout rejects the type
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
  LSSAR_CHECK(CheckKvType(args.spec, layout.dtype).ok());
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
