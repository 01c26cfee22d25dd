#include "kernels/cpu/layer_norm.h"

#include <cmath>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cc"
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

// A sum has this many parts on every machine: element i goes to part i % kParts.
constexpr size_t kParts = 16;
constexpr size_t kVectors = kParts / kLanes;

DoubleVec LoadWide(const float* from) {
  return hn::PromoteTo(DoubleTag(), hn::LoadU(FloatTag(), from));
}

// Sum of term(x[i]). No multiply-add is fused here: not every machine has one for doubles.
template <class Term>
double SumOf(const float* x, size_t width, const Term& term) {
  const DoubleTag d;
  DoubleVec sums[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
  const size_t whole = width - width % kParts;
  for (size_t i = 0; i < whole; i += kParts) {
    for (size_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Add(sums[v], term(LoadWide(x + i + v * kLanes)));
    }
  }
  HWY_ALIGN double parts[kParts];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, parts + v * kLanes);
  HWY_ALIGN float rest[kParts] = {};
  for (size_t i = whole; i < width; ++i) rest[i - whole] = x[i];
  HWY_ALIGN double rest_terms[kParts];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(term(LoadWide(rest + v * kLanes)), d, rest_terms + v * kLanes);
  }
  for (size_t i = 0; i < width - whole; ++i) parts[i] += rest_terms[i];
  for (size_t half = kParts / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  }
  return parts[0];
}

void LayerNormRowOfTarget(const float* x, size_t width, const LayerNormView& norm, float* out) {
  const DoubleTag d;
  const double count = static_cast<double>(width);
  const double mean = SumOf(x, width, [](DoubleVec v) { return v; }) / count;
  const DoubleVec means = hn::Set(d, mean);
  const double variance = SumOf(x, width,
                                [means](DoubleVec v) {
                                  const DoubleVec centred = hn::Sub(v, means);
                                  return hn::Mul(centred, centred);
                                }) /
                          count;
  const double scale = 1.0 / std::sqrt(variance + static_cast<double>(norm.epsilon));
  const DoubleVec scales = hn::Set(d, scale);
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const DoubleVec unit = hn::Mul(hn::Sub(LoadWide(x + i), means), scales);
    const DoubleVec y = hn::Add(hn::Mul(unit, LoadWide(norm.weight + i)), LoadWide(norm.bias + i));
    hn::StoreU(hn::DemoteTo(FloatTag(), y), FloatTag(), out + i);
  }
  for (; i < width; ++i) {
    const double unit = (static_cast<double>(x[i]) - mean) * scale;
    const double y = unit * static_cast<double>(norm.weight[i]) + static_cast<double>(norm.bias[i]);
    out[i] = static_cast<float>(y);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(LayerNormRowOfTarget);

void LayerNormRow(const float* x, int width, const LayerNormView& norm, float* out) {
  HWY_DYNAMIC_DISPATCH(LayerNormRowOfTarget)(x, static_cast<size_t>(width), norm, out);
}

}  // namespace lssar
#endif  // HWY_ONCE
