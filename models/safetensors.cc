#include "models/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "kernels/check.h"
#include "kernels/float_bits.h"
#include "kernels/str_cat.h"
#include "models/file_text.h"
#include "models/json_fields.h"
#include "models/safetensors_header.h"

namespace lssar {
namespace {

template <typename From, typename To, typename Convert>
std::vector<To> Widen(std::span<const std::byte> bytes, Convert convert) {
  std::vector<To> result(bytes.size() / sizeof(From));
  for (size_t i = 0; i < result.size(); ++i) {
    From element;
    std::memcpy(&element, bytes.data() + i * sizeof(From), sizeof(From));
    result[i] = convert(element);
  }
  return result;
}

// model.safetensors.index.json: the shard (a file beside the index) of every tensor.
absl::StatusOr<std::map<std::string, std::string>> ReadShardIndex(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFileText(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<nlohmann::json> index = ParseJson(*text, path);
  if (!index.ok()) return index.status();
  JsonFields fields(*index, path);
  const nlohmann::json* weight_map = fields.Object("weight_map");
  if (weight_map == nullptr) {
    fields.Fail("weight_map is missing");
    return fields.status();
  }
  JsonFields shards(*weight_map, path + ": weight_map");
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, value] : weight_map->items()) {
    const std::string shard = shards.Text(tensor);
    if (shard.empty() || shard.find('/') != std::string::npos) {
      shards.Fail(StrCat("the shard of \"", tensor, "\" is \"", shard,
                         "\", must be the name of a file beside the index"));
    }
    shard_of[tensor] = shard;
  }
  if (!shards.status().ok()) return shards.status();
  return shard_of;
}

}  // namespace

int64_t TensorView::NumElements() const { return int64_t(bytes.size() / BytesOf(type)); }

std::vector<float> TensorView::ToFloats() const {
  switch (type) {
    case TensorType::kF32: return Widen<float, float>(bytes, [](float x) { return x; });
    case TensorType::kF16: return Widen<uint16_t, float>(bytes, FloatFromF16);
    case TensorType::kBF16: return Widen<uint16_t, float>(bytes, FloatFromBf16);
    case TensorType::kI32:
    case TensorType::kI64:
    case TensorType::kU8: break;
  }
  LSSAR_CHECK(false);  // ToFloats of an integer tensor
  return {};
}

std::vector<int32_t> TensorView::ToInts() const {
  const auto narrow = [](auto x) {
    if constexpr (sizeof(x) > sizeof(int32_t)) LSSAR_CHECK(x >= INT32_MIN && x <= INT32_MAX);
    return int32_t(x);
  };
  switch (type) {
    case TensorType::kI32: return Widen<int32_t, int32_t>(bytes, narrow);
    case TensorType::kI64: return Widen<int64_t, int32_t>(bytes, narrow);
    case TensorType::kU8: return Widen<uint8_t, int32_t>(bytes, narrow);
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16: break;
  }
  LSSAR_CHECK(false);  // ToInts of a float tensor
  return {};
}

// A whole file, read-only, for as long as the object lives. Whoever shortens the file meanwhile
// ends the process (SIGBUS), as with any mapped file.
class TensorFile::Mapping {
 public:
  static absl::StatusOr<std::unique_ptr<Mapping>> Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FileError(path, errno);
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
      close(fd);
      return absl::InvalidArgumentError(StrCat(path, ": not a regular file"));
    }
    auto mapping = std::unique_ptr<Mapping>(new Mapping);
    mapping->num_bytes_ = size_t(status.st_size);
    if (mapping->num_bytes_ > 0) {
      mapping->address_ = mmap(nullptr, mapping->num_bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    const int error = errno;
    close(fd);
    if (mapping->address_ == MAP_FAILED) {
      mapping->address_ = nullptr;
      return FileError(path, error);
    }
    return mapping;
  }

  ~Mapping() {
    if (address_ != nullptr) munmap(address_, num_bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> Bytes() const {
    return {static_cast<const std::byte*>(address_), address_ == nullptr ? 0 : num_bytes_};
  }

 private:
  Mapping() = default;
  void* address_ = nullptr;
  size_t num_bytes_ = 0;
};

TensorFile::TensorFile() = default;
TensorFile::TensorFile(TensorFile&&) noexcept = default;
TensorFile& TensorFile::operator=(TensorFile&&) noexcept = default;
TensorFile::~TensorFile() = default;

const TensorView* TensorFile::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void TensorFile::Release(const TensorView& tensor) const {
  // Pages shared with a neighbour may go too: nothing here is ever written.
  const uintptr_t page_bytes = uintptr_t(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.bytes.data());
  const uintptr_t first_page = begin / page_bytes * page_bytes;
  madvise(reinterpret_cast<void*>(first_page), begin - first_page + tensor.bytes.size(),
          MADV_DONTNEED);
}

absl::Status TensorFile::Add(const std::string& path) {
  absl::StatusOr<std::unique_ptr<Mapping>> mapping = Mapping::Open(path);
  if (!mapping.ok()) return mapping.status();
  const std::span<const std::byte> file = (*mapping)->Bytes();
  absl::StatusOr<std::vector<TensorEntry>> entries = ParseSafetensorsHeader(file, path);
  if (!entries.ok()) return entries.status();
  for (TensorEntry& entry : *entries) {
    TensorView view{.type = entry.type,
                    .shape = std::move(entry.shape),
                    .bytes = file.subspan(entry.begin, entry.end - entry.begin)};
    if (!tensors_.emplace(entry.name, std::move(view)).second) {
      return absl::InvalidArgumentError(
          StrCat(path, ": tensor \"", entry.name, "\" also stands in an earlier shard"));
    }
  }
  mappings_.push_back(*std::move(mapping));
  paths_.push_back(path);
  return absl::OkStatus();
}

absl::StatusOr<TensorFile> TensorFile::Open(const std::string& path) {
  TensorFile file;
  const absl::Status status = file.Add(path);
  if (!status.ok()) return status;
  return file;
}

absl::StatusOr<TensorFile> TensorFile::OpenModel(const std::string& directory) {
  const std::string single = StrCat(directory, "/model.safetensors");
  if (access(single.c_str(), F_OK) == 0) return Open(single);

  const std::string index_path = single + ".index.json";
  absl::StatusOr<std::map<std::string, std::string>> shard_of = ReadShardIndex(index_path);
  if (absl::IsNotFound(shard_of.status())) {
    return absl::NotFoundError(
        StrCat(single, ": no such file, nor is there ", index_path, " for shards"));
  }
  if (!shard_of.ok()) return shard_of.status();

  std::set<std::string> shards;
  for (const auto& [tensor, shard] : *shard_of) shards.insert(shard);
  TensorFile file;
  for (const std::string& shard : shards) {
    const absl::Status status = file.Add(StrCat(directory, "/", shard));
    if (!status.ok()) return status;
  }
  for (const auto& [tensor, shard] : *shard_of) {
    if (file.Find(tensor) == nullptr) {
      return absl::InvalidArgumentError(
          StrCat(index_path, ": tensor \"", tensor, "\" is not in ", shard));
    }
  }
  for (const auto& [tensor, view] : file.tensors_) {
    if (!shard_of->contains(tensor)) {
      return absl::InvalidArgumentError(
          StrCat(index_path, ": tensor \"", tensor, "\" of a shard is not listed"));
    }
  }
  return file;
}

}  // namespace lssar
