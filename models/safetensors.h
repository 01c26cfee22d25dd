// Read-only, memory-mapped safetensors files, single or sharded, every offset checked.
// Source  https://github.com/huggingface/safetensors (format description)
#ifndef LSSAR_MODELS_SAFETENSORS_H_
#define LSSAR_MODELS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar {

// As the format names them; of them F32, F16, BF16, I32, I64, U8 are read, others refused.
enum class TensorType : uint8_t { kF32, kF16, kBF16, kI32, kI64, kU8 };

struct TensorView {
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t NumElements() const;
  // Widened to float; Requires a float type.
  std::vector<float> ToFloats() const;
  // Requires an integer type whose values fit.
  std::vector<int32_t> ToInts() const;
};

class TensorFile {
 public:
  // Errors  NOT_FOUND: no such file; INVALID_ARGUMENT: a header that is truncated, not JSON, or
  //         lies (length past the end of the file, ranges that overlap, leave gaps, are misaligned
  //         or disagree with dtype x shape, an unknown dtype, a name twice).
  static absl::StatusOr<TensorFile> Open(const std::string& path);

  // `directory`/model.safetensors, or all the shards of `directory`/model.safetensors.index.json.
  static absl::StatusOr<TensorFile> OpenModel(const std::string& directory);

  const std::map<std::string, TensorView, std::less<>>& Tensors() const { return tensors_; }
  // nullptr: no such tensor.
  const TensorView* Find(std::string_view name) const;
  // Gives back the memory of a tensor that has been copied: touched again, it is read from the file
  // again. Loading so holds one tensor beside the packed weights, not the whole file.
  void Release(const TensorView& tensor) const;
  // Paths of the files behind the tensors, in order.
  const std::vector<std::string>& Paths() const { return paths_; }

  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;
  ~TensorFile();

 private:
  class Mapping;
  TensorFile();
  absl::Status Add(const std::string& path);

  std::vector<std::unique_ptr<Mapping>> mappings_;
  std::vector<std::string> paths_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_SAFETENSORS_H_
