// Element types that cross a kernel interface.
#ifndef LSSAR_KERNELS_DTYPE_H_
#define LSSAR_KERNELS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lssar {

// kI8 is a way to keep numbers, with scales beside them (quantize.h, kv_layout.h): no array of bare
// int8 ever crosses an interface.
enum class DType : uint8_t { kF32, kF16, kBF16, kI8 };

// Of one element, without its share of a scale.
constexpr size_t BytesOf(DType t) {
  switch (t) {
    case DType::kF32: return 4;
    case DType::kF16: return 2;
    case DType::kBF16: return 2;
    case DType::kI8: return 1;
  }
  return 0;
}

constexpr std::string_view NameOf(DType t) {
  switch (t) {
    case DType::kF32: return "fp32";
    case DType::kF16: return "fp16";
    case DType::kBF16: return "bf16";
    case DType::kI8: return "int8";
  }
  return "?";
}

// "fp32" | "fp16" | "bf16" | "int8" -> the type; anything else -> nullopt.
constexpr std::optional<DType> ParseDType(std::string_view name) {
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    if (NameOf(t) == name) return t;
  }
  return std::nullopt;
}

// Whether an element stands for a number by itself. Only such types may be the input of Pack.
constexpr bool IsFloat(DType t) { return t != DType::kI8; }

}  // namespace lssar

#endif  // LSSAR_KERNELS_DTYPE_H_
