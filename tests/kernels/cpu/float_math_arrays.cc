#include "tests/kernels/cpu/float_math_arrays.h"

#include <algorithm>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/cpu/float_math_arrays.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

template <class F>
void Map(std::span<float> x, const F& f) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  HWY_ALIGN float whole[kLanes];
  for (size_t i = 0; i < x.size(); i += kLanes) {
    const size_t count = std::min(kLanes, x.size() - i);
    std::fill_n(whole, kLanes, 0.5f);
    std::copy_n(x.data() + i, count, whole);
    hn::Store(f(hn::Load(d, whole)), d, whole);
    std::copy_n(whole, count, x.data() + i);
  }
}

void SoftplusOfTarget(std::span<float> x) {
  Map(x, [](auto v) { return Softplus(hn::ScalableTag<float>(), v); });
}

void SoftplusOfBase2OfTarget(std::span<float> x) {
  Map(x, [](auto v) { return SoftplusOfBase2(hn::ScalableTag<float>(), v); });
}

void Log2OnePlusOfTarget(std::span<float> x) {
  Map(x, [](auto v) { return Log2OnePlus(hn::ScalableTag<float>(), v); });
}

void Exp2OfTarget(std::span<float> x) {
  Map(x, [](auto v) { return Exp2OfNegative(hn::ScalableTag<float>(), v); });
}

void SigmoidOfTarget(std::span<float> x) {
  Map(x, [](auto v) { return Sigmoid(hn::ScalableTag<float>(), v); });
}

void GeluOfTarget(std::span<float> x) {
  Map(x, [](auto v) { return Gelu(hn::ScalableTag<float>(), v); });
}

void MishOfTarget(std::span<float> x) {
  Map(x, [](auto v) { return Mish(hn::ScalableTag<float>(), v); });
}

void ExpOfTarget(std::span<float> x) {
  Map(x, [](auto v) { return ExpOfNegative(hn::ScalableTag<float>(), v); });
}

void PowerOfTarget(double p, std::span<float> x) {
  const Power power(p);
  Map(x, [&](auto v) { return power(hn::ScalableTag<float>(), v); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(SoftplusOfTarget);
HWY_EXPORT(SoftplusOfBase2OfTarget);
HWY_EXPORT(Log2OnePlusOfTarget);
HWY_EXPORT(Exp2OfTarget);
HWY_EXPORT(SigmoidOfTarget);
HWY_EXPORT(GeluOfTarget);
HWY_EXPORT(MishOfTarget);
HWY_EXPORT(ExpOfTarget);
HWY_EXPORT(PowerOfTarget);

void SoftplusOnCpu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(SoftplusOfTarget)(x); }
void SoftplusOfBase2OnCpu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(SoftplusOfBase2OfTarget)(x); }
void Log2OnePlusOnCpu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(Log2OnePlusOfTarget)(x); }
void Exp2OfNegativeOnCpu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(Exp2OfTarget)(x); }
void SigmoidOnCpu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(SigmoidOfTarget)(x); }
void GeluOnCpu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(GeluOfTarget)(x); }
void MishOnCpu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(MishOfTarget)(x); }
void ExpOfNegativeOnCpu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(ExpOfTarget)(x); }
void PowerOnCpu(double p, std::span<float> x) { HWY_DYNAMIC_DISPATCH(PowerOfTarget)(p, x); }

}  // namespace lssar
#endif  // HWY_ONCE
