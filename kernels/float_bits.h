// Conversions between fp32 and the bits of fp16 and bf16, one element at a time. Rounding is to
// nearest, ties to even.
#ifndef LSSAR_KERNELS_FLOAT_BITS_H_
#define LSSAR_KERNELS_FLOAT_BITS_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "kernels/dtype.h"

namespace lssar {

inline float FloatFromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return uint16_t((bits >> 16) | 0x40);  // a NaN stays a NaN
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float FloatFromF16(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
    const float magnitude = float(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

// Values above the largest finite fp16 become infinite (IEEE 754).
inline uint16_t F16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return uint16_t(sign | 0x7E00);
  if (magnitude >= 65520.0f) return uint16_t(sign | 0x7C00);
  if (magnitude < 0x1p-14f) {
    // The sum with 0.5 has exactly the fraction bits of the subnormal: the addition rounds.
    const uint32_t rounded = std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3F000000u;
    return uint16_t(sign | rounded);
  }
  const uint32_t rebiased = (bits & 0x7FFFFFFF) - (uint32_t{127 - 15} << 23);
  return uint16_t(sign | ((rebiased + 0xFFF + ((rebiased >> 13) & 1)) >> 13));
}

// Element `idx` of an array of `dtype`, widened to fp32 (exact).
// Requires  IsFloat(dtype)
inline float LoadElement(const void* array, DType dtype, size_t idx) {
  switch (dtype) {
    case DType::kF32: return static_cast<const float*>(array)[idx];
    case DType::kF16: return FloatFromF16(static_cast<const uint16_t*>(array)[idx]);
    case DType::kBF16: return FloatFromBf16(static_cast<const uint16_t*>(array)[idx]);
    case DType::kI8:
    case DType::kI4:
    case DType::kFx16: break;
  }
  LSSAR_CHECK(false);  // an integer needs its scale
}

// Requires  IsFloat(dtype)
inline void StoreElement(float value, void* array, DType dtype, size_t idx) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(array)[idx] = value; return;
    case DType::kF16: static_cast<uint16_t*>(array)[idx] = F16FromFloat(value); return;
    case DType::kBF16: static_cast<uint16_t*>(array)[idx] = Bf16FromFloat(value); return;
    case DType::kI8:
    case DType::kI4:
    case DType::kFx16: break;
  }
  LSSAR_CHECK(false);  // an integer needs its scale
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_FLOAT_BITS_H_
