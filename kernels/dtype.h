// Element types of weights and of K/V pages.
#ifndef LSSAR_KERNELS_DTYPE_H_
#define LSSAR_KERNELS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lssar {

// kI8 is a storage format: int8 elements with scales beside them (quantize.h, kv_layout.h). No
// array of bare int8 crosses an interface.
enum class DType : uint8_t { kF32, kF16, kBF16, kI8 };

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  size_t num_bytes;  // of one element, without its share of a scale
  bool is_float;     // an element is a number without a scale
  bool holds_kv;     // K/V pages may have this type; weights may have any
};

// By DType. A new type is one row here; kernels/DESIGN.md lists the other files.
inline constexpr DTypeInfo kDTypes[] = {
    {DType::kF32, "fp32", 4, true, true},
    {DType::kF16, "fp16", 2, true, true},
    {DType::kBF16, "bf16", 2, true, false},
    {DType::kI8, "int8", 1, false, true},
};

constexpr const DTypeInfo& InfoOf(DType t) { return kDTypes[static_cast<int>(t)]; }

// Bytes of one element, without its share of a scale.
constexpr size_t BytesOf(DType t) { return InfoOf(t).num_bytes; }

constexpr std::string_view NameOf(DType t) { return InfoOf(t).name; }

// "fp32" | "fp16" | "bf16" | "int8". nullopt: no such name.
constexpr std::optional<DType> ParseDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

// True if an element is a number without a scale. Pack takes only such types as input.
constexpr bool IsFloat(DType t) { return InfoOf(t).is_float; }

// True if K/V pages may have this type.
constexpr bool HoldsKv(DType t) { return InfoOf(t).holds_kv; }

}  // namespace lssar

#endif  // LSSAR_KERNELS_DTYPE_H_
