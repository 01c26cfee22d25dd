// Element types of weights and of K/V pages.
#ifndef LSSAR_KERNELS_DTYPE_H_
#define LSSAR_KERNELS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lssar {

// kI8, kI4 and kFx16 are storage formats: integers with scales beside them (quantize.h,
// kv_layout.h). No array of bare integers crosses an interface.
//
// kFx16 is a type of K/V pages alone: keys in 16-bit fixed point, a high and a low plane of int8
// (kernels/DESIGN.md, "K in two planes"), and values in fp16.
enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kI4, kFx16 };

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  size_t num_bits;     // of one element, without its share of a scale
  bool is_float;       // an element is a number without a scale
  bool holds_kv;       // K/V pages may have this type
  bool holds_weights;  // weights may have this type
};

// By DType; the types of weights come first. A new type is one row here; kernels/DESIGN.md lists
// the other files.
inline constexpr DTypeInfo kDTypes[] = {
    {DType::kF32, "fp32", 32, true, true, true},   {DType::kF16, "fp16", 16, true, true, true},
    {DType::kBF16, "bf16", 16, true, false, true}, {DType::kI8, "int8", 8, false, true, true},
    {DType::kI4, "int4", 4, false, false, true},   {DType::kFx16, "fx16", 16, false, true, false},
};

constexpr const DTypeInfo& InfoOf(DType t) { return kDTypes[static_cast<int>(t)]; }

// Bytes of one element, without its share of a scale.
// Requires  not int4, which has two elements in a byte
constexpr size_t BytesOf(DType t) { return InfoOf(t).num_bits / 8; }

constexpr std::string_view NameOf(DType t) { return InfoOf(t).name; }

// "fp32" | "fp16" | "bf16" | "int8" | "int4" | "fx16". nullopt: no such name.
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

// True if weights may have this type.
constexpr bool HoldsWeights(DType t) { return InfoOf(t).holds_weights; }

}  // namespace lssar

#endif  // LSSAR_KERNELS_DTYPE_H_
