// Elementary functions on vectors of floats: phi, exp and powers for attention.
// Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_FLOAT_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_FLOAT_MATH_INL_H_
#undef LSSAR_KERNELS_CPU_FLOAT_MATH_INL_H_
#else
#define LSSAR_KERNELS_CPU_FLOAT_MATH_INL_H_
#endif

#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/linear_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// max(least, x); NaN if x is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtLeast(D d, float least, V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, least)), hn::Set(d, least), x);
#else  // the order matters: if an operand is NaN, x86 returns the second
  return hn::Max(hn::Set(d, least), x);
#endif
}

// min(most, x); NaN if x is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtMost(D d, float most, V x) {
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, most)), hn::Set(d, most), x);
}

// e^x for x <= 0. For x < -87 the result is e^-87 (1.6e-38): positive and normal. NaN stays NaN.
// Accuracy  1 ULP above -87; 1.5 on machines without fused multiply-add
// Source    x = n ln 2 + r, |r| <= ln(2) / 2; minimax polynomial (Remez) of (e^r - 1 - r) / r^2,
//           relative error of e^r 3.1e-9
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfNegative(D d, V x) {
  const hn::RebindToSigned<D> d_int;
  x = AtLeast(d, -87.0f, x);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504089f), magic);
  const V n = hn::Sub(shifted, magic);
  // ln 2 in two parts: n times the first is exact.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860682030941723e-6f), r);
  V poly = hn::Set(d, 0.00138144769f);
  poly = hn::MulAdd(poly, r, hn::Set(d, 0.00836878036f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 0.0416683941f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 0.166665201f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 0.499999934f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 1.0f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 1.0f));
  // Times 2^n: n goes straight into the exponent. Both stay in range: n >= -126 and poly > 0.7.
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(d_int, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(d_int, poly), exponent));
}

// ln(1 + t) for t in [0, 1]. NaN stays NaN.
// Accuracy  1.5 ULP
// Source    minimax polynomial (Remez) of (t - ln(1 + t)) / t^2; relative error of ln(1 + t)
//           5.2e-9, no division
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogOnePlus(D d, V t) {
  V poly = hn::Set(d, 0.00332816481f);
  poly = FusedMulAdd(d, poly, t, hn::Set(d, -0.020249827f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.0577529505f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, -0.106899604f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.15361274f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, -0.196975829f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.249590487f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, -0.333305606f));
  poly = FusedMulAdd(d, poly, t, hn::Set(d, 0.499999347f));
  return FusedNegMulAdd(d, hn::Mul(t, t), poly, t);
}

// softplus(s) = max(s, 0) + ln(1 + e^-|s|). NaN stays NaN.
// Accuracy  2 ULP for s >= -87, 2.5 without fused multiply-add; below -87, a positive number of at
//           most 1.7e-38
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Softplus(D d, V s) {
  const V t = ExpOfNegative(d, hn::Neg(hn::Abs(s)));
  return hn::Add(AtLeast(d, 0.0f, s), LogOnePlus(d, t));
}

// The same functions in base 2. They need fewer instructions: 2^x has an exact range reduction.

constexpr float kLog2E = 1.44269504089f;

// 2^x for x <= 0. For x < -126 the result is 2^-126: positive and normal. NaN stays NaN.
// Accuracy  1 ULP above -126; 1.5 on machines without fused multiply-add
// Source    minimax polynomial of 2^r, |r| <= 1/2, relative error 1.6e-8
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2OfNegative(D d, V x) {
  const hn::RebindToSigned<D> d_int;
  x = AtLeast(d, -126.0f, x);
  // As in ExpOfNegative. r is exact.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::Add(x, magic);
  const V r = hn::Sub(x, hn::Sub(shifted, magic));
  V poly = hn::Set(d, 0.00015353362f);
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 0.0013398875f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 0.00961843692f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 0.0555033237f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 0.240226477f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 0.693147182f));
  poly = FusedMulAdd(d, poly, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(d_int, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(d_int, poly), exponent));
}

// 2^-|y|. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2OfNegativeAbs(D d, V y) {
  return Exp2OfNegative(d, hn::Or(y, hn::Set(d, -0.0f)));
}

// log2(1 + 2^y) = softplus(y ln 2) / ln 2. NaN stays NaN.
// Accuracy  3 ULP for y >= -126; below, a positive number of at most 1.7e-38
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SoftplusOfBase2(D d, V y) {
  return FusedMulAdd(d, LogOnePlus(d, Exp2OfNegativeAbs(d, y)), hn::Set(d, kLog2E),
                     AtLeast(d, 0.0f, y));
}

// log2(1 + z) for 0 <= z < 2^127. NaN stays NaN.
// Accuracy  3 ULP
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log2OnePlus(D d, V z) {
  const hn::RebindToSigned<D> d_int;
  const V one = hn::Set(d, 1.0f);
  // 1 + z = m 2^e with m in [1, 2). Below 1, z itself: 1 + z would round it.
  const auto bits = hn::BitCast(d_int, hn::Add(z, one));
  const auto mantissa = hn::And(bits, hn::Set(d_int, 0x7FFFFF));
  const V m = hn::BitCast(d, hn::Or(mantissa, hn::Set(d_int, 0x3F800000)));
  const V e = hn::ConvertTo(d, hn::Sub(hn::ShiftRight<23>(bits), hn::Set(d_int, 127)));
  const auto is_large = hn::Ge(z, one);
  const V t = hn::IfThenElse(is_large, hn::Sub(m, one), z);
  return FusedMulAdd(d, LogOnePlus(d, t), hn::Set(d, kLog2E), hn::IfThenElseZero(is_large, e));
}

// The other phi of the attention family (attention_spec.h). NaN stays NaN.

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Relu(D d, V s) {
  return AtLeast(d, 0.0f, s);
}

// 1 / (1 + e^-s).
// Accuracy  3 ULP for s >= -87; below -87, a positive number of at most 1.7e-38
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V s) {
  const V t = ExpOfNegative(d, hn::Neg(hn::Abs(s)));
  const V one = hn::Set(d, 1.0f);
  return hn::Div(hn::IfThenElse(hn::Lt(s, hn::Zero(d)), t, one), hn::Add(one, t));
}

// s times the cumulative normal distribution: exact GELU, not the tanh approximation.
// Accuracy  7 ULP for s >= -13, 90 without fused multiply-add; 0 below that
// Source    erfc(z) / 2 = e^(-z^2) t poly(t), t = 1 / (1 + 0.4 z), z = |s| / sqrt(2): minimax
//           polynomial, relative error 6.1e-8
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gelu(D d, V s) {
  const V one = hn::Set(d, 1.0f);
  const V a = AtMost(d, 13.0f, hn::Abs(s));
  const V t = hn::Div(one, hn::MulAdd(hn::Set(d, 0.282842726f), a, one));
  V poly = hn::Set(d, 0.0205331333f);
  poly = hn::MulAdd(poly, t, hn::Set(d, -0.0697013736f));
  poly = hn::MulAdd(poly, t, hn::Set(d, 0.0410374999f));
  poly = hn::MulAdd(poly, t, hn::Set(d, 0.0450872928f));
  poly = hn::MulAdd(poly, t, hn::Set(d, 0.0391064957f));
  poly = hn::MulAdd(poly, t, hn::Set(d, 0.0970291048f));
  poly = hn::MulAdd(poly, t, hn::Set(d, 0.10085772f));
  poly = hn::MulAdd(poly, t, hn::Set(d, 0.113233767f));
  poly = hn::MulAdd(poly, t, hn::Set(d, 0.112816393f));
  // Half of the rounding error of a^2 is a relative error of e^(-a^2 / 2): corrected below.
  const V square = hn::Mul(a, a);
  const V rest = hn::MulSub(a, a, square);
  const V half = hn::Set(d, -0.5f);
  V tail = hn::Mul(ExpOfNegative(d, hn::Mul(half, square)), hn::Mul(t, poly));
  tail = hn::MulAdd(hn::Mul(half, rest), tail, tail);
  const V share = hn::IfThenElse(hn::Lt(s, hn::Zero(d)), tail, hn::Sub(one, tail));
  return hn::IfThenZeroElse(hn::Lt(s, hn::Set(d, -13.0f)), hn::Mul(s, share));
}

// s tanh(softplus(s)), with tanh(ln(1 + e^s)) = ((1 + e^s)^2 - 1) / ((1 + e^s)^2 + 1).
// Accuracy  4 ULP for s >= -87
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Mish(D d, V s) {
  const V t = ExpOfNegative(d, hn::Neg(hn::Abs(s)));
  const V one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const auto is_negative = hn::Lt(s, hn::Zero(d));
  // For positive s both are multiplied by e^-2s, so that no power overflows.
  const V above =
      hn::IfThenElse(is_negative, hn::MulAdd(t, t, hn::Mul(two, t)), hn::MulAdd(two, t, one));
  const V rest = hn::IfThenElse(is_negative, two, hn::Mul(two, hn::Mul(t, t)));
  return hn::Mul(s, hn::Div(above, hn::Add(above, rest)));
}

// u^p for u in (0, 1]: by squaring if p is an integer, else e^(p ln u).
class Power {
 public:
  explicit Power(double p)
      : p_(float(p)), whole_(p <= 0x1p30 && p == double(int64_t(p)) ? uint32_t(p) : 0) {
    while (whole_ >> 1 >= top_bit_) top_bit_ <<= 1;
  }

  // Accuracy  p ULP: the effect of the last bit of u
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V u) const {
    if (whole_ == 0) return ExpOfNegative(d, hn::Mul(hn::Set(d, p_), hn::Log(d, u)));
    V power = u;
    for (uint32_t bit = top_bit_ >> 1; bit != 0; bit >>= 1) {
      power = hn::Mul(power, power);
      if ((whole_ & bit) != 0) power = hn::Mul(power, u);
    }
    return power;
  }

 private:
  float p_;
  uint32_t whole_;        // p, or 0 if p is not an integer
  uint32_t top_bit_ = 1;  // the highest bit of whole_
};

}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
