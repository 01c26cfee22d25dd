#include "kernels/cpu/norm.h"

#include <cmath>
#include <cstddef>

#include "kernels/check.h"

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
  const double mean = SumOf(x, count, [](DoubleVec v) { return v; }) / double(count);
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
    const DoubleVec unit = hn::Mul(hn::Sub(LoadWide(x + i), means), scales);
    DoubleVec y = hn::Mul(unit, LoadWide(norm.weight + i));
    if (norm.bias != nullptr) y = hn::Add(y, LoadWide(norm.bias + i));
    hn::StoreU(hn::DemoteTo(FloatTag(), y), FloatTag(), out + i);
  }
  for (; i < count; ++i) {
    double y = (double(x[i]) - mean) * scale * double(norm.weight[i]);
    if (norm.bias != nullptr) y += double(norm.bias[i]);
    out[i] = float(y);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(NormRowOfTarget);

void NormRow(const float* x, int hidden_size, const NormView& norm, float* out) {
  LSSAR_CHECK(norm.kind == NormKind::kLayerNorm);
  HWY_DYNAMIC_DISPATCH(NormRowOfTarget)(x, size_t(hidden_size), norm, out);
}

}  // namespace lssar
#endif  // HWY_ONCE
