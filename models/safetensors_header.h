// The header of a safetensors file: a pure function over its bytes, so that a fuzzer can hold it.
// Source  https://github.com/huggingface/safetensors (format description)
#ifndef LSSAR_MODELS_SAFETENSORS_HEADER_H_
#define LSSAR_MODELS_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/safetensors.h"

namespace lssar {

// The format's own limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape = {};
  size_t begin = 0;  // bytes, from the file's first one
  size_t end = 0;
};

// Reads nothing beyond the header; never past `file`.
// Ensures  entries in file order, each inside the file, aligned to its element, as long as dtype x
//          shape says, together covering what follows the header without gap or overlap
// Errors   INVALID_ARGUMENT: anything else; names `source`, the tensor, the value and the limit
absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                                std::string_view source);

// "F32", "I64", ...: as the format writes it.
std::string_view NameOf(TensorType type);
size_t BytesOf(TensorType type);

}  // namespace lssar

#endif  // LSSAR_MODELS_SAFETENSORS_HEADER_H_
