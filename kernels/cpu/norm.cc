#include "kernels/cpu/norm.h"

#include <cmath>
#include <cstddef>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DoubleTag = hn::CappedTag<double, 8>;
using DoubleVec = hn::Vec<DoubleTag>;
using FloatTag = hn::Rebind<float, DoubleTag>;
constexpr size_t kLanes = hn::MaxLanes(DoubleTag());

// A sum has this many parts on every machine. Element i belongs to part i % kParts.
constexpr size_t kParts = 16;
constexpr size_t kVectors = kParts / kLanes;

DoubleVec LoadWide(const float* from) {
  return hn::PromoteTo(DoubleTag(), hn::LoadU(FloatTag(), from));
}

// Sum of term(x[i]). No fused multiply-add: some machines have none for doubles.
template <class Term>
double SumOf(const float* x, size_t count, const Term& term) {
  const DoubleTag d;
  DoubleVec sums[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
  const size_t whole = count - count % kParts;
  for (size_t i = 0; i < whole; i += kParts) {
    for (size_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Add(sums[v], term(LoadWide(x + i + v * kLanes)));
    }
  }
  HWY_ALIGN double parts[kParts];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, parts + v * kLanes);
  HWY_ALIGN float rest[kParts] = {};
  for (size_t i = whole; i < count; ++i) rest[i - whole] = x[i];
  HWY_ALIGN double rest_terms[kParts];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(term(LoadWide(rest + v * kLanes)), d, rest_terms + v * kLanes);
  }
  for (size_t i = 0; i < count - whole; ++i) parts[i] += rest_terms[i];
  for (size_t half = kParts / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  }
  return parts[0];
}

void NormRowOfTarget(const float* x, size_t count, const NormView& norm, float* out) {
  const DoubleTag d;
  const bool is_layer_norm = norm.kind == NormKind::kLayerNorm;
  const double mean =
      is_layer_norm ? SumOf(x, count, [](DoubleVec v) { return v; }) / double(count) : 0.0;
  const DoubleVec means = hn::Set(d, mean);
  const double variance = SumOf(x, count,
                                [means](DoubleVec v) {
                                  const DoubleVec centred = hn::Sub(v, means);
                                  return hn::Mul(centred, centred);
                                }) /
                          double(count);
  const double scale = 1.0 / std::sqrt(variance + double(norm.epsilon));
  const DoubleVec scales = hn::Set(d, scale);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    DoubleVec y = hn::Mul(hn::Sub(LoadWide(x + i), means), scales);
    if (norm.weight != nullptr) y = hn::Mul(y, LoadWide(norm.weight + i));
    if (norm.bias != nullptr) y = hn::Add(y, LoadWide(norm.bias + i));
    hn::StoreU(hn::DemoteTo(FloatTag(), y), FloatTag(), out + i);
  }
  for (; i < count; ++i) {
    double y = (double(x[i]) - mean) * scale;
    if (norm.weight != nullptr) y *= double(norm.weight[i]);
    if (norm.bias != nullptr) y += double(norm.bias[i]);
    out[i] = float(y);
  }
}

// out = residual + scale * y, each element rounded as a product and a sum.
void AddScaledOfTarget(const float* y, size_t count, float scale, const float* residual,
                       float* out) {
  const hn::CappedTag<float, 16> d;
  const auto scales = hn::Set(d, scale);
  size_t i = 0;
  for (; i + hn::MaxLanes(d) <= count; i += hn::MaxLanes(d)) {
    const auto scaled = hn::Mul(scales, hn::LoadU(d, y + i));
    hn::StoreU(residual == nullptr ? scaled : hn::Add(hn::LoadU(d, residual + i), scaled), d,
               out + i);
  }
  for (; i < count; ++i) {
    const float scaled = scale * y[i];
    out[i] = residual == nullptr ? scaled : residual[i] + scaled;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(NormRowOfTarget);
HWY_EXPORT(AddScaledOfTarget);

void NormRow(const float* x, int size, const NormView& norm, float* out) {
  LSSAR_CHECK(norm.kind != NormKind::kNone);
  HWY_DYNAMIC_DISPATCH(NormRowOfTarget)(x, size_t(size), norm, out);
}

void NormOnCpu(const NormArgs& args, ThreadPool& pool, Scratch& scratch) {
  LSSAR_CHECK(args.num_rows >= 0 && args.size >= 1 && args.x != nullptr && args.out != nullptr);
  const size_t size = size_t(args.size);
  const bool is_plain = args.residual == nullptr && args.scale == 1.0f;
  pool.ParallelFor(args.num_rows, [&](int64_t row, int thread_idx) {
    const size_t at = size_t(row) * size;
    if (is_plain) {
      NormRow(args.x + at, args.size, args.norm, args.out + at);
      return;
    }
    float* const y = scratch.OfThread<float>(thread_idx, size);
    NormRow(args.x + at, args.size, args.norm, y);
    HWY_DYNAMIC_DISPATCH(AddScaledOfTarget)
    (y, size, args.scale, args.residual == nullptr ? nullptr : args.residual + at, args.out + at);
  });
}

}  // namespace lssar
#endif  // HWY_ONCE
