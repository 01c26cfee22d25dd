// Numbers kept as int8 with one scale for a group of them. Every backend's weights come from here,
// so that all hold the same values.
#ifndef LSSAR_KERNELS_QUANTIZE_H_
#define LSSAR_KERNELS_QUANTIZE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

// values[i] ~ to[i] * scale, to[i] in [-127, 127]. Returns the scale: the largest magnitude / 127,
// rounded to the nearest bf16. So a scale has the range of fp32, and to[i] * scale is exact in
// fp32: 7 bits times 8. Rounding the scale never clips: 127 * (1 + 2^-8) is still nearer to 127.
// Shapes    to [values.size()]
// Ensures   |values[i] - to[i] * scale| <= scale / 2, where scale is a normal number
// Errors    nullopt: a value is not finite
inline std::optional<float> QuantizeGroup(std::span<const float> values, int8_t* to) {
  uint32_t largest_bits = 0;  // of magnitudes, which compare as their bits do, NaN above all
  for (const float value : values) {
    largest_bits = std::max(largest_bits, std::bit_cast<uint32_t>(value) & 0x7FFFFFFF);
  }
  const float largest = std::bit_cast<float>(largest_bits);
  if (!std::isfinite(largest)) return std::nullopt;
  // The largest float's own scale rounds down: no product with one overflows.
  const float scale = FloatFromBf16(Bf16FromFloat(largest / 127.0f));
  if (scale == 0) {
    std::fill_n(to, values.size(), int8_t{0});
    return scale;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const float steps = RoundToEven(values[i] / scale);
    to[i] = static_cast<int8_t>(std::clamp(steps, -127.0f, 127.0f));
  }
  return scale;
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_QUANTIZE_H_
