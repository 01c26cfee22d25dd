#include "kernels/cpu/top_logprobs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/top_logprobs.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/linear_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
constexpr size_t kLanes = hn::MaxLanes(FloatTag());

// A sum has this many parts on every machine: element i goes to part i % kParts.
constexpr size_t kParts = 16;
constexpr size_t kVectors = kParts / kLanes;

// Largest element; NaN when the row holds one, or an infinity.
// Requires  count >= 1
float MaxIfFinite(const float* x, size_t count) {
  const FloatTag d;
  FloatVec largest = hn::Set(d, x[0]);
  FloatVec poison = hn::Zero(d);  // 0 * finite is 0, 0 * (NaN or infinity) is NaN
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const FloatVec v = hn::LoadU(d, x + i);
    largest = hn::Max(largest, v);
    poison = hn::Add(poison, hn::Mul(v, hn::Zero(d)));
  }
  HWY_ALIGN float maxima[kLanes];
  HWY_ALIGN float poisons[kLanes];
  hn::Store(largest, d, maxima);
  hn::Store(poison, d, poisons);
  float max = x[0];
  float sum = 0;
  for (; i < count; ++i) {
    max = std::max(max, x[i]);
    sum += x[i] * 0.0f;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    max = std::max(max, maxima[lane]);
    sum += poisons[lane];
  }
  return sum == 0.0f ? max : std::numeric_limits<float>::quiet_NaN();
}

// Sum of e^(x[i] - max). Each part carries the rounding errors of its additions along: thousands
// of terms add no more error than one.
double SumOfExp(const float* x, size_t count, float max) {
  const FloatTag d;
  const FloatVec maxima = hn::Set(d, max);
  FloatVec sums[kVectors];
  FloatVec errors[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sums[v] = errors[v] = hn::Zero(d);
  HWY_ALIGN float last[kParts];
  for (size_t i = 0; i < count; i += kParts) {
    const float* from = x + i;
    if (count - i < kParts) {  // e^-infinity counts as e^-87: nothing beside the largest term, 1
      std::fill(last, last + kParts, -std::numeric_limits<float>::infinity());
      std::copy(from, x + count, last);
      from = last;
    }
    for (size_t v = 0; v < kVectors; ++v) {
      const FloatVec term = ExpClamped(d, hn::Sub(hn::LoadU(d, from + v * kLanes), maxima));
      const FloatVec sum = hn::Add(sums[v], term);
      const FloatVec added = hn::Sub(sum, sums[v]);
      const FloatVec lost = hn::Add(hn::Sub(sums[v], hn::Sub(sum, added)), hn::Sub(term, added));
      errors[v] = hn::Add(errors[v], lost);
      sums[v] = sum;
    }
  }
  HWY_ALIGN float sum_parts[kParts];
  HWY_ALIGN float error_parts[kParts];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(sums[v], d, sum_parts + v * kLanes);
    hn::Store(errors[v], d, error_parts + v * kLanes);
  }
  double total = 0;
  for (size_t i = 0; i < kParts; ++i) {
    total += static_cast<double>(sum_parts[i]) + static_cast<double>(error_parts[i]);
  }
  return total;
}

// Whether any of x[0, count) is above `bound`.
bool AnyAbove(const float* x, size_t count, float bound) {
  const FloatTag d;
  const FloatVec bounds = hn::Set(d, bound);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    if (!hn::AllFalse(d, hn::Gt(hn::LoadU(d, x + i), bounds))) return true;
  }
  for (; i < count; ++i) {
    if (x[i] > bound) return true;
  }
  return false;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(MaxIfFinite);
HWY_EXPORT(SumOfExp);
HWY_EXPORT(AnyAbove);

namespace {

// Logits that are skipped together when none of them is among the best.
constexpr size_t kSearchBlock = 64;

bool IsBetter(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
}

// log_sum is ln(sum(e^x)). The one place that rounds a log-probability.
float LogprobOf(float logit, double log_sum) {
  return static_cast<float>(static_cast<double>(logit) - log_sum);
}

// The num_top best in `best`, in order. Two logits may round to one log-probability; their ids
// decide then, so elements are compared by what is reported.
void FindBest(std::span<const float> logits, double log_sum, size_t num_top,
              std::vector<TokenLogprob>& best) {
  best.clear();
  best.reserve(num_top);
  // A heap whose front is the worst. An element that comes later and is no better loses by its id.
  for (size_t block = 0; block < logits.size(); block += kSearchBlock) {
    const size_t count = std::min(kSearchBlock, logits.size() - block);
    if (best.size() == num_top) {
      const float worst_logit = logits[static_cast<size_t>(best.front().id)];
      if (!HWY_DYNAMIC_DISPATCH(AnyAbove)(&logits[block], count, worst_logit)) continue;
    }
    for (size_t i = block; i < block + count; ++i) {
      const TokenLogprob candidate = {.id = static_cast<int32_t>(i),
                                      .logprob = LogprobOf(logits[i], log_sum)};
      if (best.size() == num_top) {
        if (!IsBetter(candidate, best.front())) continue;
        std::pop_heap(best.begin(), best.end(), IsBetter);
        best.pop_back();
      }
      best.push_back(candidate);
      std::push_heap(best.begin(), best.end(), IsBetter);
    }
  }
  std::sort_heap(best.begin(), best.end(), IsBetter);
}

void FillRow(std::span<const float> logits, int32_t target, size_t num_top, RowLogprobs& out) {
  out.target = 0;
  out.top.clear();
  const float max = HWY_DYNAMIC_DISPATCH(MaxIfFinite)(logits.data(), logits.size());
  out.finite = !std::isnan(max);
  if (!out.finite || (target == -1 && num_top == 0)) return;
  const double sum = HWY_DYNAMIC_DISPATCH(SumOfExp)(logits.data(), logits.size(), max);
  const double log_sum = static_cast<double>(max) + std::log(sum);
  if (target != -1) out.target = LogprobOf(logits[static_cast<size_t>(target)], log_sum);
  if (num_top > 0) FindBest(logits, log_sum, num_top, out.top);
}

}  // namespace

void TopLogprobsOnCpu(const TopLogprobsArgs& args, ThreadPool& pool, Scratch&) {
  const size_t num_rows = args.targets.size();
  LSSAR_CHECK(args.num_top.size() == num_rows && args.out.size() == num_rows && args.vocab >= 1);
  const size_t vocab = static_cast<size_t>(args.vocab);
  pool.ParallelFor(static_cast<int64_t>(num_rows), [&](int64_t row_idx, int) {
    const size_t row = static_cast<size_t>(row_idx);
    const int32_t target = args.targets[row];
    const int32_t num_top = args.num_top[row];
    LSSAR_CHECK(-1 <= target && target < args.vocab && 0 <= num_top && num_top <= args.vocab);
    FillRow({args.logits + row * vocab, vocab}, target, static_cast<size_t>(num_top),
            args.out[row]);
  });
}

}  // namespace lssar
#endif  // HWY_ONCE
