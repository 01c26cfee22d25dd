// Element types that cross a kernel interface.
#ifndef LSSAR_KERNELS_DTYPE_H_
#define LSSAR_KERNELS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lssar {

enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr size_t BytesOf(DType t) { return t == DType::kF32 ? 4 : 2; }

constexpr std::string_view NameOf(DType t) {
  switch (t) {
    case DType::kF32: return "fp32";
    case DType::kF16: return "fp16";
    case DType::kBF16: return "bf16";
  }
  return "?";
}

// "fp32" | "fp16" | "bf16" -> the type; anything else -> nullopt.
constexpr std::optional<DType> ParseDType(std::string_view name) {
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (NameOf(t) == name) return t;
  }
  return std::nullopt;
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_DTYPE_H_
