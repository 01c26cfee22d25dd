// Vector functions of attention against double, in units in the last place.
#include "tests/kernels/cpu/float_math_arrays.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/instruction_set.h"

namespace lssar {
namespace {

// Largest |actual - expected| over the distance of floats at expected; NaN is infinitely far.
template <class F>
double WorstUlp(const std::vector<float>& x, const std::vector<float>& actual, const F& exact) {
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = exact(double{x[i]});
    const float magnitude = std::fabs(static_cast<float>(expected));
    const double ulp = double{std::nextafter(magnitude, std::numeric_limits<float>::infinity())} -
                       double{magnitude};
    const double error = std::fabs(double{actual[i]} - expected) / ulp;
    worst = error <= worst      ? worst
            : std::isnan(error) ? std::numeric_limits<double>::infinity()
                                : error;
  }
  return worst;
}

std::vector<float> Range(double first, double last, int count) {
  std::vector<float> x;
  for (int i = 0; i <= count; ++i)
    x.push_back(static_cast<float>(first + (last - first) * i / count));
  return x;
}

double ExactSoftplus(double s) { return std::max(s, 0.0) + std::log1p(std::exp(-std::fabs(s))); }

double ExactSigmoid(double s) { return std::exp(-ExactSoftplus(-s)); }
double ExactGelu(double s) { return 0.5 * s * std::erfc(-s / std::sqrt(2.0)); }
double ExactMish(double s) { return s * std::tanh(ExactSoftplus(s)); }

class FloatMathTest : public testing::TestWithParam<InstructionSet> {
 protected:
  FloatMathTest() { ChooseInstructionSet(GetParam()); }
  // The additional error that float_math-inl.h allows without a fused multiply-add.
  static double Unfused() {
    return GetParam().name == "SSE4" || GetParam().name == "SCALAR" ? 0.5 : 0.0;
  }
  ~FloatMathTest() override { ChooseInstructionSet(UsableInstructionSets().front()); }
};

TEST_P(FloatMathTest, Softplus) {
  for (const auto& [first, last] :
       {std::pair{-45.0, 45.0}, {-2.0, 2.0}, {-1e-3, 1e-3}, {-87.0, -40.0}, {40.0, 1e4}}) {
    const std::vector<float> x = Range(first, last, 300007);
    std::vector<float> y = x;
    SoftplusOnCpu(y);
    EXPECT_LE(WorstUlp(x, y, ExactSoftplus), 2.0 + Unfused()) << first << " to " << last;
  }
}

TEST_P(FloatMathTest, SoftplusAtTheEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> y{0.0f, -0.0f, -88.0f, -1e30f, -kInf, 1e30f, kInf, std::nanf("")};
  SoftplusOnCpu(y);
  EXPECT_EQ(y[0], static_cast<float>(std::log(2.0)));
  EXPECT_EQ(y[1], y[0]);
  for (size_t i : {2, 3, 4}) {
    EXPECT_GT(y[i], 0.0f);
    EXPECT_LT(y[i], 1.7e-38f);
  }
  EXPECT_EQ(y[5], 1e30f);
  EXPECT_EQ(y[6], kInf);
  EXPECT_TRUE(std::isnan(y[7]));
}

double ExactSoftplusOfBase2(double y) {
  return std::max(y, 0.0) + std::log1p(std::exp2(-std::fabs(y))) / std::log(2.0);
}

TEST_P(FloatMathTest, SoftplusOfBase2) {
  for (const auto& [first, last] :
       {std::pair{-60.0, 60.0}, {-2.0, 2.0}, {-1e-3, 1e-3}, {-126.0, -50.0}, {50.0, 1e4}}) {
    const std::vector<float> x = Range(first, last, 300007);
    std::vector<float> y = x;
    SoftplusOfBase2OnCpu(y);
    EXPECT_LE(WorstUlp(x, y, ExactSoftplusOfBase2), 3.0 + Unfused()) << first << " to " << last;
  }
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> y{0.0f, -127.0f, -1e30f, -kInf, 1e30f, kInf, std::nanf("")};
  SoftplusOfBase2OnCpu(y);
  EXPECT_EQ(y[0], 1.0f);
  for (size_t i : {1, 2, 3}) {
    EXPECT_GT(y[i], 0.0f);
    EXPECT_LT(y[i], 1.8e-38f);
  }
  EXPECT_EQ(y[4], 1e30f);
  EXPECT_EQ(y[5], kInf);
  EXPECT_TRUE(std::isnan(y[6]));
}

TEST_P(FloatMathTest, Log2OnePlus) {
  const auto exact = [](double z) { return std::log1p(z) / std::log(2.0); };
  for (const auto& [first, last] :
       {std::pair{0.0, 1e-6}, {0.0, 1.0}, {0.99, 1.01}, {1.0, 4.0}, {0.0, 70000.0}, {1e5, 1e38}}) {
    const std::vector<float> x = Range(first, last, 100003);
    std::vector<float> y = x;
    Log2OnePlusOnCpu(y);
    EXPECT_LE(WorstUlp(x, y, exact), 3.0 + Unfused()) << first << " to " << last;
  }
  std::vector<float> y{0.0f, 1.0f, 3.0f, 65535.0f, std::nanf("")};
  Log2OnePlusOnCpu(y);
  EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1), (std::vector<float>{0, 1, 2, 16}));
  EXPECT_TRUE(std::isnan(y[4]));
}

TEST_P(FloatMathTest, Exp2) {
  const std::vector<float> x = Range(-126, 0, 500009);
  std::vector<float> y = x;
  Exp2OfNegativeOnCpu(y);
  EXPECT_LE(WorstUlp(x, y, [](double v) { return std::exp2(v); }), 1.0 + Unfused());
}

TEST_P(FloatMathTest, Sigmoid) {
  for (const auto& [first, last] : {std::pair{-87.0, 0.0}, {-2.0, 2.0}, {0.0, 1e3}}) {
    const std::vector<float> x = Range(first, last, 300007);
    std::vector<float> y = x;
    SigmoidOnCpu(y);
    EXPECT_LE(WorstUlp(x, y, ExactSigmoid), 3.0 + Unfused()) << first << " to " << last;
  }
}

TEST_P(FloatMathTest, Gelu) {
  for (const auto& [first, last] : {std::pair{-13.0, 0.0}, {-1.0, 1.0}, {0.0, 1e3}}) {
    const std::vector<float> x = Range(first, last, 300007);
    std::vector<float> y = x;
    GeluOnCpu(y);
    EXPECT_LE(WorstUlp(x, y, ExactGelu), Unfused() > 0 ? 90.0 : 7.0) << first << " to " << last;
  }
}

TEST_P(FloatMathTest, Mish) {
  for (const auto& [first, last] : {std::pair{-80.0, 0.0}, {-2.0, 2.0}, {0.0, 1e3}}) {
    const std::vector<float> x = Range(first, last, 300007);
    std::vector<float> y = x;
    MishOnCpu(y);
    EXPECT_LE(WorstUlp(x, y, ExactMish), 4.0 + Unfused()) << first << " to " << last;
  }
}

TEST_P(FloatMathTest, OtherPhiAtTheEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x{-1e30f, 1e30f, kInf, std::nanf("")};
  for (const auto& [function, at_top] :
       {std::pair{&SigmoidOnCpu, 1.0f}, {&GeluOnCpu, 1e30f}, {&MishOnCpu, 1e30f}}) {
    std::vector<float> y = x;
    function(y);
    EXPECT_LE(std::fabs(y[0]), 1.7e-8f);
    EXPECT_EQ(y[1], at_top);
    EXPECT_EQ(y[2], at_top == 1.0f ? 1.0f : kInf);
    EXPECT_TRUE(std::isnan(y[3]));
  }
}

TEST_P(FloatMathTest, Exp) {
  const std::vector<float> x = Range(-87, 0, 500009);
  std::vector<float> y = x;
  ExpOfNegativeOnCpu(y);
  EXPECT_LE(WorstUlp(x, y, [](double v) { return std::exp(v); }), 1.0 + Unfused());
}

TEST_P(FloatMathTest, Power) {
  for (double p : {0.5, 1.0, 2.0, 2.5, 3.0, 7.0, 15.0, 50.0, 100.0, 12345.0}) {
    // From the x whose power is 2^-40.
    const std::vector<float> x = Range(std::pow(2.0, -40 / p), 1.0, 100003);
    std::vector<float> y = x;
    PowerOnCpu(p, y);
    // A squaring adds half a ULP, and the next squaring doubles it. p times the last bit of the
    // logarithm.
    EXPECT_LE(WorstUlp(x, y, [&](double v) { return std::pow(v, p); }), std::max(p, 40.0)) << p;
    EXPECT_EQ(y.back(), 1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, FloatMathTest, testing::ValuesIn(UsableInstructionSets()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace lssar
