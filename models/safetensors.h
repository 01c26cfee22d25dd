// Read-only, memory-mapped safetensors files, single or sharded. Every offset is checked.
//
// While files are mapped, SIGBUS is handled: if another process truncates one, or the disk fails,
// the part that is missing reads as zeros, and CheckUnchanged tells.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sha256.h"

namespace lssar {

// The format's element types of whole bytes; a file with another one is refused. Weights have the
// first seven; masks and tables that no model needs have the others too.
enum class TensorType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kI64,
  kI8,
  kU8,
  kBool,
  kF64,
  kI16,
  kU16,
  kU32,
  kU64
};

// "F32", "I64", ...: the format's names.
std::string_view NameOf(TensorType type);
size_t BytesOf(TensorType type);

struct TensorView {
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t NumElements() const;
  // F32, F16 or BF16.
  bool IsFloat() const;
  // Requires  F32, F16 or BF16
  std::vector<float> ToFloats() const;
  // Requires  I32, I64, I8 or U8, whose values fit
  std::vector<int32_t> ToInts() const;
};

class TensorFile {
 public:
  // Errors  those of RegularFile::Open
  //         INVALID_ARGUMENT: a header that ParseSafetensorsHeader refuses
  static absl::StatusOr<TensorFile> Open(const std::string& path);

  // Opens `directory`/model.safetensors, or all shards of `directory`/model.safetensors.index.json.
  static absl::StatusOr<TensorFile> OpenModel(const std::string& directory);

  const std::map<std::string, TensorView, std::less<>>& Tensors() const { return tensors_; }
  // nullptr: no such tensor.
  const TensorView* Find(std::string_view name) const;
  // Drops the tensor's pages from memory after it was copied; a later access reads the file again.
  // With it, loading needs memory for one tensor beside the packed weights, not for the whole file.
  void Release(const TensorView& tensor) const;
  // Adds the bytes of all files in the order of Paths(), as they are mapped.
  // Errors  those of CheckUnchanged; INVALID_ARGUMENT: a file cannot be read
  absl::Status AddBytesTo(Sha256* hash) const;
  // Call when the last tensor was read: what was read before a write is not what is read after it.
  // Errors  ABORTED: a file was written or truncated since it was opened, or a part of it could not
  //         be read
  absl::Status CheckUnchanged() const;
  // The paths of the file or of its shards.
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

// The format's own limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape = {};
  size_t begin = 0;  // bytes from the start of the file
  size_t end = 0;
};

// Parses the header of a safetensors file: a pure function of its bytes, for tests and fuzzers.
// Ensures  entries in file order, each inside the file, aligned to its element, as long as dtype x
//          shape, together covering all bytes behind the header without gap or overlap
// Cost     linear in the header; stores the entries and one member of the JSON object at a time
// Errors   INVALID_ARGUMENT naming `source`, tensor, value and limit: truncated, not JSON, too long
//          a header, a name twice, an unknown dtype, or offsets that break what is ensured
absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                                std::string_view source);

}  // namespace lssar

#endif  // LSSAR_MODELS_SAFETENSORS_H_
