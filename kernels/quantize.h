// Numbers kept as int8 with one scale for a group of them. Every backend's weights, keys and values
// come from here, so that all hold the same.
#ifndef LSSAR_KERNELS_QUANTIZE_H_
#define LSSAR_KERNELS_QUANTIZE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "kernels/float_bits.h"

namespace lssar {

// In-features of one output channel that share a scale. The last group of a row may be shorter.
inline constexpr int kGroupCols = 64;

// The nearest integer, ties to even. Requires |x| < 2^22.
inline float RoundToEven(float x) {
  constexpr float kShift = 0x1.8p23f;  // its last bit is worth 1: the adder does the rounding
  return (x + kShift) - kShift;
}

// The largest magnitude; NaN or an infinity if one is there.
inline float LargestMagnitude(std::span<const float> values) {
  uint32_t largest_bits = 0;  // magnitudes compare as their bits do, NaN above all
  for (const float value : values) {
    largest_bits = std::max(largest_bits, std::bit_cast<uint32_t>(value) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(largest_bits);
}

// to[i] = values[i] / scale, to the nearest integer in [-127, 127]; 0 where scale is 0.
inline void RoundToSteps(std::span<const float> values, float scale, int8_t* to) {
  if (scale == 0) {
    std::fill_n(to, values.size(), int8_t{0});
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const float steps = RoundToEven(values[i] / scale);
    to[i] = static_cast<int8_t>(std::clamp(steps, -127.0f, 127.0f));
  }
}

// A group of weights: values[i] ~ to[i] * scale, to[i] in [-127, 127]. Returns the scale: the
// largest magnitude / 127, rounded to the nearest bf16. So a scale has the range of fp32, and
// to[i] * scale is exact in fp32: 7 bits times 8. Rounding the scale never clips:
// 127 * (1 + 2^-8) is still nearer to 127.
// Shapes    to [values.size()]
// Ensures   |values[i] - to[i] * scale| <= scale / 2, where scale is a normal number
// Errors    nullopt: a value is not finite
inline std::optional<float> QuantizeGroup(std::span<const float> values, int8_t* to) {
  const float largest = LargestMagnitude(values);
  if (!std::isfinite(largest)) return std::nullopt;
  // The largest float's own scale rounds down: no product with one overflows.
  const float scale = FloatFromBf16(Bf16FromFloat(largest / 127.0f));
  RoundToSteps(values, scale, to);
  return scale;
}

// One head's key or value of one token: values[i] ~ to[i] * scale, to[i] in [-127, 127]. Returns
// the scale: the largest magnitude / 127, in fp32. A vector that holds a NaN or an infinity has the
// scale NaN, so that neither is lost.
// Shapes    to [values.size()]
// Ensures   |values[i] - to[i] * scale| <= scale / 2 (1 + 2^-16), where scale is a normal number
inline float QuantizeVector(std::span<const float> values, int8_t* to) {
  const float largest = LargestMagnitude(values);
  if (!std::isfinite(largest)) {
    std::fill_n(to, values.size(), int8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = largest / 127.0f;
  RoundToSteps(values, scale, to);
  return scale;
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_QUANTIZE_H_
