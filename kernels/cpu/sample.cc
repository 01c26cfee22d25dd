#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/candidates.h"
#include "kernels/cpu/sample_weights.h"
#include "kernels/philox.h"
#include "kernels/sample_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sample.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
constexpr size_t kLanes = hn::MaxLanes(FloatTag());

// The largest element. NaN if the row holds a NaN or an infinity.
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

// True if one of x[0, count) is above `bound`.
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

// The first i with x[i] == value; count if there is none.
size_t FindFirst(const float* x, size_t count, float value) {
  const FloatTag d;
  const FloatVec values = hn::Set(d, value);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    if (!hn::AllFalse(d, hn::Eq(hn::LoadU(d, x + i), values))) break;
  }
  while (i < count && x[i] != value) ++i;
  return i;
}

// The largest element.
// Requires  count >= 1; no NaN
float Largest(const float* x, size_t count) {
  const FloatTag d;
  FloatVec largest = hn::Set(d, x[0]);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) largest = hn::Max(largest, hn::LoadU(d, x + i));
  HWY_ALIGN float maxima[kLanes];
  hn::Store(largest, d, maxima);
  float max = *std::max_element(maxima, maxima + kLanes);
  for (; i < count; ++i) max = std::max(max, x[i]);
  return max;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(MaxIfFinite);
HWY_EXPORT(AnyAbove);
HWY_EXPORT(FindFirst);
HWY_EXPORT(Largest);

namespace {

// Logits that FindBest skips together if none of them is among the best.
constexpr size_t kSearchBlock = 64;

bool IsBetter(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
}

// log_sum is ln(sum(e^x)). Every log-probability is rounded here, so equal ids have equal bits.
float LogprobOf(float logit, double log_sum) { return float(double(logit) - log_sum); }

// best = the num_top best, in order. Compares log-probabilities, not logits: two logits may round
// to the same log-probability, and then the lower id is better.
void FindBest(std::span<const float> logits, double log_sum, size_t num_top,
              std::vector<TokenLogprob>* best_list) {
  std::vector<TokenLogprob>& best = *best_list;
  best.clear();
  best.reserve(num_top);
  // A heap with the worst element in front. A later element of equal logprob has the higher id:
  // worse.
  for (size_t block = 0; block < logits.size(); block += kSearchBlock) {
    const size_t count = std::min(kSearchBlock, logits.size() - block);
    if (best.size() == num_top) {
      const float worst_logit = logits[size_t(best.front().id)];
      if (!HWY_DYNAMIC_DISPATCH(AnyAbove)(&logits[block], count, worst_logit)) continue;
    }
    for (size_t i = block; i < block + count; ++i) {
      const TokenLogprob candidate = {.id = int32_t(i), .logprob = LogprobOf(logits[i], log_sum)};
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

int32_t FirstOf(std::span<const float> values, float value) {
  return int32_t(HWY_DYNAMIC_DISPATCH(FindFirst)(values.data(), values.size(), value));
}

// logits: those of the ids that may be drawn; max: the largest of them.
// memory: Candidates::NumBytes(logits.size()) bytes.
int32_t DrawId(std::span<const float> logits, float max, const SampleRequest& row, void* memory) {
  const SamplingParams& params = *row.params;
  const bool is_adjusted = params.AdjustsLogits() || !row.mask.empty();
  if (params.temperature == 0 && !is_adjusted) return FirstOf(logits, max);
  Candidates candidates(logits, memory);
  float best = max;
  if (is_adjusted) {
    candidates.Adjust(row);
    const std::span<const float> scores = candidates.Scores();
    best = HWY_DYNAMIC_DISPATCH(Largest)(scores.data(), scores.size());
    LSSAR_CHECK(best != kNotAllowed);
    if (params.temperature == 0) return FirstOf(scores, best);
  }
  candidates.Filter(params, best);
  return candidates.Pick(DrawFor(params.seed, uint32_t(row.choice), uint64_t(row.position)));
}

void SetLogprobs(std::span<const float> logits, float max, size_t num_top, SampleResult* out) {
  const double sum = double(SumOfWeights(logits, max, kRateOfLogprobs));
  const double log_sum = double(max) + std::log(std::ldexp(sum, -kWeightBits));
  out->logprob = LogprobOf(logits[size_t(out->id)], log_sum);
  if (num_top > 0) FindBest(logits, log_sum, num_top, &out->top);
}

}  // namespace

void SampleOnCpu(const SampleArgs& args, ThreadPool& pool, Scratch& scratch) {
  const size_t num_rows = args.rows.size();
  LSSAR_CHECK(args.out.size() == num_rows && args.vocab >= 1 && args.vocab <= kMaxSampleVocab);
  LSSAR_CHECK(args.NumIds() <= args.vocab);
  const size_t vocab = size_t(args.vocab), num_ids = size_t(args.NumIds());
  pool.ParallelFor(int64_t(num_rows), [&](int64_t row_idx, int thread_idx) {
    const size_t i = size_t(row_idx);
    const SampleRequest& row = args.rows[i];
    SampleResult& out = args.out[i];
    LSSAR_CHECK(row.target < args.vocab && row.num_logprobs <= args.vocab);
    LSSAR_CHECK(row.num_logprobs <= kMaxTopLogprobs);
    const std::span<const float> logits(args.logits + i * vocab, vocab);
    const float max = HWY_DYNAMIC_DISPATCH(MaxIfFinite)(logits.data(), vocab);
    out.finite = !std::isnan(max);
    out.top.clear();
    out.logprob = 0;
    if (!out.finite) return;
    out.id = row.target;
    if (out.id < 0) {
      void* const memory = scratch.OfThread<unsigned char>(thread_idx, Candidates::NumBytes(vocab));
      const std::span<const float> drawable = logits.first(num_ids);
      const float drawable_max =
          num_ids == vocab ? max : HWY_DYNAMIC_DISPATCH(Largest)(drawable.data(), num_ids);
      out.id = DrawId(drawable, drawable_max, row, memory);
    }
    const size_t id = size_t(out.id);
    out.is_best = logits[id] == max && FirstOf(logits.first(id), max) == out.id;
    if (row.num_logprobs >= 0) {
      SetLogprobs(logits, max, size_t(row.num_logprobs), &out);
    }
  });
}

}  // namespace lssar
#endif  // HWY_ONCE
