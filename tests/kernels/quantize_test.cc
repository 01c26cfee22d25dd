#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace lssar {
namespace {

struct Quantized {
  std::vector<int8_t> steps;
  float scale = 0;
};

Quantized Quantize(const std::vector<float>& values) {
  Quantized quantized{.steps = std::vector<int8_t>(values.size(), 99)};
  const std::optional<float> scale = QuantizeGroup(values, quantized.steps.data());
  EXPECT_TRUE(scale.has_value());
  quantized.scale = scale.value_or(0);
  return quantized;
}

float Kept(const Quantized& q, size_t idx) { return static_cast<float>(q.steps[idx]) * q.scale; }

TEST(QuantizeTest, RoundsTiesToEven) {
  // 127 and powers of two: the scale is exactly 1.
  const Quantized q =
      Quantize({127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.49f, -126.51f, -0.0f});
  EXPECT_EQ(q.scale, 1.0f);
  EXPECT_EQ(q.steps, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, 0, -127, 0}));
}

TEST(QuantizeTest, NoErrorExceedsHalfAScale) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> power(-120, 120);
  for (int trial = 0; trial < 2000; ++trial) {
    const double spread = std::exp2(power(random));
    std::vector<float> values(size_t(1 + trial % kGroupCols));
    for (float& value : values) value = static_cast<float>(normal(random) * spread);
    const Quantized q = Quantize(values);
    EXPECT_EQ(q.scale, FloatFromBf16(Bf16FromFloat(q.scale)));
    for (size_t i = 0; i < values.size(); ++i) {
      const double kept = double{Kept(q, i)};
      EXPECT_EQ(kept, static_cast<double>(q.steps[i]) * double{q.scale}) << "not exact";
      // The quotient is rounded once to fp32 and once to an integer.
      EXPECT_LE(std::abs(kept - double{values[i]}), double{q.scale} * (0.5 + 1e-5));
      EXPECT_GE(q.steps[i], -127);
    }
  }
}

TEST(QuantizeTest, RoundingTheScaleDoesNotClipTheLargest) {
  // Every significand of a largest value.
  for (uint32_t bits = 0x3F800000; bits < 0x40000000; bits += 61) {
    const float largest = std::bit_cast<float>(bits);
    const Quantized q = Quantize({-largest});
    EXPECT_EQ(static_cast<float>(-q.steps[0]), std::nearbyint(largest / q.scale)) << largest;
    EXPECT_GE(-q.steps[0], 126);
  }
}

TEST(QuantizeTest, TheLargestNumberStaysFinite) {
  const float largest = std::numeric_limits<float>::max();
  const Quantized q = Quantize({largest, -largest / 2});
  EXPECT_EQ(q.steps, (std::vector<int8_t>{127, -64}));
  EXPECT_TRUE(std::isfinite(Kept(q, 0)));
}

TEST(QuantizeTest, ZerosAndTheSmallestNumbers) {
  EXPECT_EQ(Quantize({0, -0.0f, 0}).steps, (std::vector<int8_t>{0, 0, 0}));
  EXPECT_EQ(Quantize({}).scale, 0);
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const float value : {tiny, 100 * tiny, std::numeric_limits<float>::min()}) {
    const Quantized q = Quantize({value, -value});
    EXPECT_TRUE(std::abs(Kept(q, 0) - value) <= value) << value;
    EXPECT_EQ(q.steps[0], -q.steps[1]);
  }
}

// Multiples of 3, and ties between steps.
TEST(QuantizeTest, VectorsHaveTheLargestOver127AsScale) {
  std::vector<float> values;
  for (int i = -127; i <= 127; ++i) values.push_back(3.0f * static_cast<float>(i));
  values.insert(values.end(), {1.5f, 4.5f, -1.5f, -4.5f});
  std::vector<int8_t> steps(values.size(), 99);
  EXPECT_EQ(QuantizeVector(values, steps.data()), 3.0f);
  for (int i = -127; i <= 127; ++i) EXPECT_EQ(steps[static_cast<size_t>(i + 127)], i);
  EXPECT_EQ(std::vector<int8_t>(steps.end() - 4, steps.end()), (std::vector<int8_t>{0, 2, 0, -2}));
}

TEST(QuantizeTest, VectorsOfZerosAndOfNan) {
  std::vector<int8_t> steps(16, 99);  // room to spare: GCC 12 warns of a vectorized loop otherwise
  EXPECT_EQ(QuantizeVector(std::vector<float>{0.0f, -0.0f}, steps.data()), 0.0f);
  steps.resize(2);
  EXPECT_EQ(steps, (std::vector<int8_t>{0, 0}));
  const float inf = std::numeric_limits<float>::infinity();
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), inf, -inf}) {
    EXPECT_TRUE(std::isnan(QuantizeVector(std::vector<float>{1, poison}, steps.data()))) << poison;
  }
  const float largest = std::numeric_limits<float>::max();
  const float scale = QuantizeVector(std::vector<float>{largest, -1}, steps.data());
  EXPECT_EQ(steps, (std::vector<int8_t>{127, 0}));
  EXPECT_NEAR(scale / largest * 127, 1.0, 1e-6);
}

// fx16: 16 bits, whose high byte rounds to at most 127.
TEST(QuantizeTest, FixedPoint) {
  std::vector<float> values;
  for (int i = -kMaxFixed; i <= kMaxFixed; i += 127) values.push_back(float(i) / 1024);
  values.push_back(0.49f / 1024);
  std::vector<int16_t> fixed(values.size());
  EXPECT_EQ(QuantizeFixed(values, fixed.data()), 1.0f / 1024);
  for (size_t i = 0; i + 1 < values.size(); ++i) EXPECT_EQ(fixed[i], -kMaxFixed + 127 * int(i));
  EXPECT_EQ(fixed.back(), 0);
  EXPECT_LE((kMaxFixed + 128) >> 8, 127);
  fixed.assign(2, 99);
  EXPECT_EQ(QuantizeFixed(std::vector<float>{0.0f, -0.0f}, fixed.data()), 0.0f);
  EXPECT_EQ(fixed, (std::vector<int16_t>{0, 0}));
  const float inf = std::numeric_limits<float>::infinity();
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), inf, -inf}) {
    EXPECT_TRUE(std::isnan(QuantizeFixed(std::vector<float>{1, poison}, fixed.data()))) << poison;
  }
}

TEST(QuantizeTest, RejectsNonFiniteGroups) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), inf, -inf}) {
    int8_t steps[2];
    EXPECT_EQ(QuantizeGroup(std::vector<float>{1, poison}, steps), std::nullopt) << poison;
  }
}

struct Int4Group {
  std::vector<uint8_t> codes;
  float scale = 0;

  float Kept(size_t idx) const { return float(kInt4Values[codes[idx]]) * scale; }
  double SquaredError(const std::vector<float>& values) const {
    double error = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      error += std::pow(double{Kept(i)} - double{values[i]}, 2);
    }
    return error;
  }
};

Int4Group QuantizeInt4(const std::vector<float>& values) {
  Int4Group group{.codes = std::vector<uint8_t>(values.size(), 99)};
  const std::optional<float> scale = QuantizeInt4Group(values, group.codes.data());
  EXPECT_TRUE(scale.has_value());
  group.scale = scale.value_or(0);
  return group;
}

TEST(QuantizeInt4Test, MultiplesOfTheValuesAreExact) {
  for (const float scale : {1.0f, -1.0f, 0x1p-100f, 0x1p100f}) {
    std::vector<float> values;
    for (const int8_t value : kInt4Values) values.push_back(float(value) * scale);
    const Int4Group group = QuantizeInt4(values);
    EXPECT_EQ(group.scale, scale);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(group.codes[i], i) << scale;
  }
}

// No other code of the same scale is nearer by more than the rounding of a tie, and no scale that
// maps the largest weight to an end is better.
TEST(QuantizeInt4Test, CodesAreNearestAndTheScaleBeatsBothEnds) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> power(-90, 90);
  for (int trial = 0; trial < 1000; ++trial) {
    const double spread = std::exp2(power(random));
    std::vector<float> values(size_t(1 + trial % kInt4GroupCols));
    for (float& value : values) value = float(normal(random) * spread);
    const Int4Group group = QuantizeInt4(values);
    EXPECT_EQ(group.scale, FloatFromBf16(Bf16FromFloat(group.scale)));
    float largest = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::abs(values[i]) > std::abs(largest)) largest = values[i];
      const double error = std::abs(double{group.Kept(i)} - double{values[i]});
      for (const int8_t value : kInt4Values) {
        const double other = std::abs(double{float(value) * group.scale} - double{values[i]});
        EXPECT_LE(error, other + 1.001 * std::abs(double{group.scale}));
      }
    }
    for (const float end : {-127.0f, 113.0f}) {
      Int4Group simple = group;
      simple.scale = FloatFromBf16(Bf16FromFloat(largest / end));
      for (size_t i = 0; i < values.size(); ++i) {
        for (uint8_t code = 0; code < 16; ++code) {
          const uint8_t before = std::exchange(simple.codes[i], code);
          const auto distance = [&] { return std::abs(simple.Kept(i) - values[i]); };
          const float at_code = distance();
          simple.codes[i] = before;
          if (at_code < distance()) simple.codes[i] = code;
        }
      }
      // Steps are rounded to integers first: near a tie this may take the other code.
      EXPECT_LE(group.SquaredError(values), simple.SquaredError(values) * 1.1 + 1e-300);
    }
  }
}

TEST(QuantizeInt4Test, LargestSmallestAndZero) {
  const float largest = std::numeric_limits<float>::max();
  const Int4Group group = QuantizeInt4({largest, -largest, largest / 2});
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isfinite(group.Kept(i))) << i;
  EXPECT_NEAR(group.Kept(0) / largest, 1, 0.15);
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const std::vector<float>& values : {std::vector<float>{0, -0.0f}, {tiny, -tiny}, {}}) {
    const Int4Group zeros = QuantizeInt4(values);
    EXPECT_EQ(zeros.scale, 0);
    for (const uint8_t code : zeros.codes) EXPECT_LT(code, 16);
  }
}

TEST(QuantizeInt4Test, RejectsNonFiniteGroups) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), inf, -inf}) {
    uint8_t codes[2];
    EXPECT_EQ(QuantizeInt4Group(std::vector<float>{1, poison}, codes), std::nullopt) << poison;
  }
}

}  // namespace
}  // namespace lssar
