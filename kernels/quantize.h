// Rounding of weights, keys and values to their stored type: int8 with one scale per group, fp16
// and bf16. Every backend quantizes with these functions, so all backends store the same numbers.
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

// The nearest integer, ties to even.
// Requires  |x| < 2^22
inline float RoundToEven(float x) {
  constexpr float kShift = 0x1.8p23f;  // its last bit is worth 1, so the addition rounds
  return (x + kShift) - kShift;
}

// The largest magnitude; NaN or infinity if the values hold one.
inline float LargestMagnitude(std::span<const float> values) {
  uint32_t largest_bits = 0;  // magnitudes compare like their bits; NaN is the largest
  for (const float value : values) {
    largest_bits = std::max(largest_bits, std::bit_cast<uint32_t>(value) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(largest_bits);
}

// to[i] = values[i] / scale, rounded to an integer and clamped to [-127, 127]; 0 if scale is 0.
inline void RoundToSteps(std::span<const float> values, float scale, int8_t* to) {
  if (scale == 0) {
    std::fill_n(to, values.size(), int8_t{0});
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const float steps = RoundToEven(values[i] / scale);
    to[i] = int8_t(std::clamp(steps, -127.0f, 127.0f));
  }
}

// Quantizes a group of weights: values[i] ~ to[i] * scale, to[i] in [-127, 127]. Returns the scale:
// the largest magnitude / 127, rounded to the nearest bf16. A bf16 scale has the range of fp32, and
// to[i] * scale is exact in fp32 (7 bits times 8 bits). Rounding the scale clips no value:
// 127 * (1 + 2^-8) is still nearer to 127.
// Shapes    to [values.size()]
// Ensures   |values[i] - to[i] * scale| <= scale / 2 if scale is a normal number
// Errors    nullopt: a value is not finite
inline std::optional<float> QuantizeGroup(std::span<const float> values, int8_t* to) {
  const float largest = LargestMagnitude(values);
  if (!std::isfinite(largest)) return std::nullopt;
  // The scale of the largest float rounds down, so to[i] * scale does not overflow.
  const float scale = FloatFromBf16(Bf16FromFloat(largest / 127.0f));
  RoundToSteps(values, scale, to);
  return scale;
}

// Quantizes one token's key or value of one head: values[i] ~ to[i] * scale, to[i] in [-127, 127].
// Returns the scale: the largest magnitude / 127, in fp32. The scale is NaN if a value is NaN or
// infinite, so the error reaches the results.
// Shapes    to [values.size()]
// Ensures   |values[i] - to[i] * scale| <= scale / 2 (1 + 2^-16) if scale is a normal number
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

// Replaces each weight of a row by the value that `stored` represents it with.
// Errors  false: a weight is not finite, and `stored` is int8
inline bool RoundWeights(std::span<float> row, DType stored) {
  switch (stored) {
    case DType::kF32: return true;
    case DType::kF16:
      for (float& value : row) value = FloatFromF16(F16FromFloat(value));
      return true;
    case DType::kBF16:
      for (float& value : row) value = FloatFromBf16(Bf16FromFloat(value));
      return true;
    case DType::kI8: break;
  }
  int8_t quantized[kGroupCols];
  for (size_t first = 0; first < row.size(); first += kGroupCols) {
    const std::span<float> group =
        row.subspan(first, std::min(row.size() - first, size_t{kGroupCols}));
    const std::optional<float> scale = QuantizeGroup(group, quantized);
    if (!scale) return false;
    for (size_t i = 0; i < group.size(); ++i) group[i] = float(quantized[i]) * *scale;
  }
  return true;
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_QUANTIZE_H_
