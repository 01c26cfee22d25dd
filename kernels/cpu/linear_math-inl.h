// Vector arithmetic whose bits are the same on every instruction set.
// Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_LINEAR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_LINEAR_MATH_INL_H_
#undef LSSAR_KERNELS_CPU_LINEAR_MATH_INL_H_
#else
#define LSSAR_KERNELS_CPU_LINEAR_MATH_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "kernels/ops.h"

// Not with sanitizers: checks of every reference would make linear.cc compile for five minutes.
#undef LSSAR_INLINE_LAMBDA
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LSSAR_INLINE_LAMBDA
#else
#define LSSAR_INLINE_LAMBDA __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// visit(i) for i < kCount, each i a constant. GCC 12 keeps an array of vectors in registers if all
// its indices are constants before it optimises, so `visit` must be inlined at once
// (LSSAR_INLINE_LAMBDA); of a loop that it unrolls itself, half of them stay in memory.
template <size_t kCount, class Visit>
HWY_INLINE void ForEachIndex(const Visit& visit) {
  [&]<size_t... kIndices>(std::index_sequence<kIndices...>) LSSAR_INLINE_LAMBDA {
    (visit(std::integral_constant<size_t, kIndices>()), ...);
  }
  (std::make_index_sequence<kCount>());
}

// True if one instruction adds products of bytes (VNNI).
inline constexpr bool kHasByteProducts = HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL;

#if HWY_TARGET != HWY_SCALAR
// sum + the products of int16 a and b, two adjacent ones in each lane. The instruction set decides
// which of the two sums a product is added to: on x86 the first.
template <class D, class Pairs, class V = hn::Vec<D>>
HWY_INLINE V AddPairProducts([[maybe_unused]] D d, Pairs a, Pairs b, V sum,
                             [[maybe_unused]] V& other_sum) {
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
  // All machines of this target have VNNI, but Highway 1.0.3 compiles it without the flag that the
  // intrinsic requires.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
#elif HWY_ARCH_X86
  // One statement: GCC 12 else computes the products of many rows first, and then has registers
  // for a third of the sums.
  decltype(sum.raw) products;
#if HWY_TARGET <= HWY_AVX2
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
#else
  asm("movdqa %2, %1\n\tpmaddwd %3, %1\n\tpaddd %1, %0"
#endif
      : "+v"(sum.raw), "=&v"(products)
      : "v"(a.raw), "v"(b.raw));
  return sum;
#else
  return hn::ReorderWidenMulAccumulate(d, a, b, sum, other_sum);
#endif
}

// sum + the products of 4 unsigned bytes of a with 4 signed bytes of b, in each lane.
// Requires  kHasByteProducts
template <class Bytes, class V>
HWY_INLINE V AddByteProducts(V sum, [[maybe_unused]] Bytes a, [[maybe_unused]] V b) {
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
#endif
  return sum;
}
#endif

// a * b + c, rounded once. Machines without the instruction (x86 before 2013) call std::fma for
// each lane: slow, but the same bits. Highway's MulAdd rounds twice there.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V FusedMulAdd(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  constexpr size_t kLanes = hn::MaxLanes(D());
  HWY_ALIGN float lanes_a[kLanes];
  HWY_ALIGN float lanes_b[kLanes];
  HWY_ALIGN float lanes_c[kLanes];
  hn::Store(a, d, lanes_a);
  hn::Store(b, d, lanes_b);
  hn::Store(c, d, lanes_c);
  for (size_t i = 0; i < kLanes; ++i) lanes_c[i] = std::fma(lanes_a[i], lanes_b[i], lanes_c[i]);
  return hn::Load(d, lanes_c);
#endif
}

// c - a * b, rounded once.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V FusedNegMulAdd(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::NegMulAdd(a, b, c);
#else
  return FusedMulAdd(d, hn::Neg(a), b, c);
#endif
}

// e^x for x in [-87, 88]. Other x are clamped to this range; the result for NaN is some finite
// value.
// Accuracy  1.1 ULP
// Source    Cephes expf: argument reduction by ln 2 in two parts, polynomial of degree 5
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpClamped(D d, V x) {
  const hn::RebindToSigned<D> d_int;
  x = hn::Min(hn::Max(x, hn::Set(d, -87.0f)), hn::Set(d, 88.0f));
  const V power = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  V r = FusedMulAdd(d, power, hn::Set(d, -0.693359375f), x);
  r = FusedMulAdd(d, power, hn::Set(d, 2.12194440e-4f), r);
  V poly = hn::Set(d, 1.9875691500e-4f);
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 1.3981999507e-3f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 8.3334519073e-3f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 4.1665795894e-2f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 1.6666665459e-1f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 5.0000001201e-1f));
  const V value = hn::Add(FusedMulAdd(d, poly, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  // |power| <= 127 and value is in (0.7, 1.42): adding to the exponent neither overflows it nor
  // leaves the normal numbers.
  const auto shift = hn::ShiftLeft<23>(hn::ConvertTo(d_int, power));
  return hn::BitCast(d, hn::Add(hn::BitCast(d_int, value), shift));
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as x / (1 + e^-2u). NaN gives NaN.
// Accuracy  2e-7 |x|; below -5, where the value is near 0, tens of ULP
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V x) {
  // -2 sqrt(2 / pi) and that times 0.044715.
  const V slope = hn::Set(d, -1.59576912160573071f);
  const V cubic = hn::Set(d, -0.0713548162726002527f);
  const V minus_2u = hn::Mul(x, FusedMulAdd(d, hn::Mul(x, x), cubic, slope));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), ExpClamped(d, minus_2u)));
}

// x / 2 (1 + erf(x / sqrt(2))). NaN gives NaN.
// Accuracy  3e-7 |x|; 0 below -13
// Source    float_math-inl.h Gelu: erfc(z) / 2 = e^(-z^2) t poly(t), t = 1 / (1 + 0.4 z)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluErf(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V magnitude = hn::Abs(x);
  const V a = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 13.0f)), hn::Set(d, 13.0f), magnitude);
  const V t = hn::Div(one, FusedMulAdd(d, hn::Set(d, 0.282842726f), a, one));
  V poly = hn::Set(d, 0.0205331333f);
  poly = FusedMulAdd(d, poly, t, hn::Set(d, -0.0697013736f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.0410374999f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.0450872928f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.0391064957f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.0970291048f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.10085772f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.113233767f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.112816393f));
  // Half of the rounding error of a^2 is a relative error of e^(-a^2 / 2): corrected below.
  const V square = hn::Mul(a, a);
  const V rest = FusedMulAdd(d, a, a, hn::Neg(square));
  const V half = hn::Set(d, -0.5f);
  V tail = hn::Mul(ExpClamped(d, hn::Mul(half, square)), hn::Mul(t, poly));
  tail = FusedMulAdd(d, hn::Mul(half, rest), tail, tail);
  const V share = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -13.0f)), hn::Mul(x, share));
}

// max(0, x). NaN gives NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ReluOf(D d, V x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
}

// x / (1 + e^-x). NaN gives NaN.
// Accuracy  2e-7 |x|
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), ExpClamped(d, hn::Neg(x))));
}

// tanh x. NaN gives NaN.
// Accuracy  2 ULP
// Source    Cephes tanhf: an odd polynomial below 0.625, 1 - 2 / (e^2x + 1) above
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V a = hn::Abs(x);
  const V square = hn::Mul(x, x);
  V poly = hn::Set(d, -5.70498872745e-3f);
  poly = FusedMulAdd(d, poly, square, hn::Set(d, 2.06390887954e-2f));
  poly = FusedMulAdd(d, poly, square, hn::Set(d, -5.37397155531e-2f));
  poly = FusedMulAdd(d, poly, square, hn::Set(d, 1.33314422036e-1f));
  poly = FusedMulAdd(d, poly, square, hn::Set(d, -3.33332819422e-1f));
  const V small = FusedMulAdd(d, hn::Mul(poly, square), x, x);
  const V one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const V large = hn::Sub(one, hn::Div(two, hn::Add(ExpClamped(d, hn::Mul(two, a)), one)));
  // Lt is false for NaN: `small` is then NaN too, so the test is Gt.
  return hn::IfThenElse(hn::Gt(a, hn::Set(d, 0.625f)), hn::CopySign(large, x), small);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Activate(D d, Activation activation, V x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kGeluTanh: return GeluTanh(d, x);
    case Activation::kGeluErf: return GeluErf(d, x);
    case Activation::kRelu: return ReluOf(d, x);
    case Activation::kRelu2: return hn::Mul(ReluOf(d, x), ReluOf(d, x));
    case Activation::kSilu: return Silu(d, x);
  }
  return x;
}

}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
