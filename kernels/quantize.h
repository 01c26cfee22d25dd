// Rounding of weights, keys and values to their stored type: int8 and int4 with one scale per
// group, fp16 and bf16. Every backend quantizes with these functions, so all backends store the
// same numbers.
#ifndef LSSAR_KERNELS_QUANTIZE_H_
#define LSSAR_KERNELS_QUANTIZE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "kernels/float_bits.h"
#include "kernels/kv_layout.h"

namespace lssar {

// In-features of one output channel that share a scale, of int8 and of int4. The last group of a
// row may be shorter.
inline constexpr int kGroupCols = 64;
inline constexpr int kInt4GroupCols = 32;

// A group of `stored`.
// Requires  int8 or int4
constexpr int GroupColsOf(DType stored) {
  return stored == DType::kI4 ? kInt4GroupCols : kGroupCols;
}

// int4: an element is a code c in [0, 15] and stands for kInt4Values[c] times its group's scale.
// The values are denser near 0, as weights are: on lssar-6m their KL is 0.8 of that of -8..7.
// Source  llama.cpp, kvalues_iq4nl (type IQ4_NL)
alignas(16) inline constexpr std::array<int8_t, 16> kInt4Values = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

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

namespace quantize_internal {

// By x + 127 for integers x in [-127, 127]: the code of the value nearest to x; the smaller one of
// a tie.
inline constexpr std::array<uint8_t, 255> kNearestInt4Code = [] {
  std::array<uint8_t, 255> codes{};
  for (int x = -127; x <= 127; ++x) {
    int best = 0;
    for (int c = 1; c < 16; ++c) {
      const int distance =
          x < kInt4Values[size_t(c)] ? kInt4Values[size_t(c)] - x : x - kInt4Values[size_t(c)];
      const int best_distance = x < kInt4Values[size_t(best)] ? kInt4Values[size_t(best)] - x
                                                              : x - kInt4Values[size_t(best)];
      if (distance < best_distance) best = c;
    }
    codes[size_t(x + 127)] = uint8_t(best);
  }
  return codes;
}();

// The scales that are tried map the weight of largest magnitude to one end of kInt4Values times
// these.
inline constexpr std::array<float, 8> kInt4Stretches = {1.0f,         1.0f / 0.75f, 1.0f / 0.8f,
                                                        1.0f / 0.85f, 1.0f / 0.9f,  1.0f / 0.95f,
                                                        1.0f / 1.05f, 1.0f / 1.1f};

// By the same index: the value itself.
inline constexpr std::array<float, 255> kNearestInt4Value = [] {
  std::array<float, 255> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = kInt4Values[kNearestInt4Code[i]];
  return values;
}();

// The index of both tables.
inline size_t NearestInt4(float steps) {
  return size_t(int(std::clamp(RoundToEven(steps), -127.0f, 127.0f)) + 127);
}

}  // namespace quantize_internal

// Quantizes a group of weights: values[i] ~ kInt4Values[codes[i]] * scale. Returns the scale, a
// bf16: among 16 scales the first with the least sum of squared errors. Each maps the weight of
// largest magnitude to -127 or 113, or near it. An element times the scale is exact in fp32.
// Shapes    codes [values.size()]
// Requires  at most kInt4GroupCols values
// Errors    nullopt: a value is not finite
inline std::optional<float> QuantizeInt4Group(std::span<const float> values, uint8_t* codes) {
  namespace internal = quantize_internal;
  float largest = 0;  // the first one of largest magnitude
  for (const float value : values) {
    if (!std::isfinite(value)) return std::nullopt;
    if (std::abs(value) > std::abs(largest)) largest = value;
  }
  float best_scale = 0, best_error = std::numeric_limits<float>::infinity();
  for (const float end : {-127.0f, 113.0f}) {
    for (const float stretch : internal::kInt4Stretches) {
      const float scale = FloatFromBf16(Bf16FromFloat(largest / (end * stretch)));
      // The inverse of a smaller scale overflows, and so may the largest weight of a larger one.
      if (std::abs(scale) < std::numeric_limits<float>::min()) continue;
      if (std::isinf(127.0f * scale)) continue;
      const float inverse = 1.0f / scale;
      const float relative = scale / largest;
      const float to_relative = relative * relative;
      float error = 0;  // in steps of this scale, so nothing overflows
      for (size_t first = 0; first < values.size(); first += 8) {
        for (const float value :
             values.subspan(first, std::min<size_t>(8, values.size() - first))) {
          const float steps = value * inverse;
          const float rest = internal::kNearestInt4Value[internal::NearestInt4(steps)] - steps;
          error += rest * rest;
        }
        if (error * to_relative >= best_error) break;  // it only grows
      }
      error *= to_relative;
      if (error < best_error) {
        best_error = error;
        best_scale = scale;
      }
    }
  }
  const float inverse = best_scale == 0 ? 0.0f : 1.0f / best_scale;
  for (size_t i = 0; i < values.size(); ++i)
    codes[i] = internal::kNearestInt4Code[internal::NearestInt4(values[i] * inverse)];
  return best_scale;
}

// int4 codes of a row, two in a byte: an even column is in the low half. An odd last column leaves
// the high half of its byte unused.
constexpr size_t Int4RowBytes(int num_cols) { return (size_t(num_cols) + 1) / 2; }
inline uint8_t Int4CodeAt(const uint8_t* row, size_t col) {
  return uint8_t(row[col / 2] >> (col % 2 * 4) & 15);
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

// Quantizes a vector to 16-bit fixed point: values[i] ~ to[i] * scale, |to[i]| <= kMaxFixed.
// Returns the scale: the largest magnitude / kMaxFixed, in fp32. The scale is NaN if a value is NaN
// or infinite, so the error reaches the results.
// Shapes    to [values.size()]
// Ensures   |values[i] - to[i] * scale| <= scale / 2 (1 + 2^-8) if scale is a normal number
inline float QuantizeFixed(std::span<const float> values, int16_t* to) {
  const float largest = LargestMagnitude(values);
  const float scale = largest / float{kMaxFixed};
  if (!std::isfinite(largest) || scale == 0) {
    std::fill_n(to, values.size(), int16_t{0});
    return std::isfinite(largest) ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  constexpr float kMost = float{kMaxFixed};
  for (size_t i = 0; i < values.size(); ++i) {
    to[i] = int16_t(std::clamp(RoundToEven(values[i] / scale), -kMost, kMost));
  }
  return scale;
}

// Replaces each weight of a row by the value that `stored` represents it with.
// Errors  false: a weight is not finite, and `stored` is int8 or int4
inline bool RoundWeights(std::span<float> row, DType stored) {
  switch (stored) {
    case DType::kF32: return true;
    case DType::kF16:
      for (float& value : row) value = FloatFromF16(F16FromFloat(value));
      return true;
    case DType::kBF16:
      for (float& value : row) value = FloatFromBf16(Bf16FromFloat(value));
      return true;
    case DType::kI8:
    case DType::kI4: break;
    case DType::kFx16: return false;  // no type of weights
  }
  if (stored == DType::kI4) {
    uint8_t codes[kInt4GroupCols];
    for (size_t first = 0; first < row.size(); first += kInt4GroupCols) {
      const std::span<float> group =
          row.subspan(first, std::min(row.size() - first, size_t{kInt4GroupCols}));
      const std::optional<float> scale = QuantizeInt4Group(group, codes);
      if (!scale) return false;
      for (size_t i = 0; i < group.size(); ++i) {
        group[i] = float(kInt4Values[codes[i]]) * *scale;
      }
    }
    return true;
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
