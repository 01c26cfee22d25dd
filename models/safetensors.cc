#include "models/safetensors.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/float_bits.h"
#include "models/json_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;

constexpr std::array<std::pair<TensorType, std::string_view>, 13> kTypes{{
    {TensorType::kF32, "F32"},
    {TensorType::kF16, "F16"},
    {TensorType::kBF16, "BF16"},
    {TensorType::kI32, "I32"},
    {TensorType::kI64, "I64"},
    {TensorType::kI8, "I8"},
    {TensorType::kU8, "U8"},
    {TensorType::kBool, "BOOL"},
    {TensorType::kF64, "F64"},
    {TensorType::kI16, "I16"},
    {TensorType::kU16, "U16"},
    {TensorType::kU32, "U32"},
    {TensorType::kU64, "U64"},
}};

absl::Status RejectFile(std::string_view source, std::string_view problem) {
  return absl::InvalidArgumentError(StrCat(source, ": ", problem));
}

std::optional<TensorType> ParseType(std::string_view name) {
  for (const auto& [type, type_name] : kTypes) {
    if (type_name == name) return type;
  }
  return std::nullopt;
}

// The header's JSON text. Its length stands before it, little-endian.
absl::StatusOr<std::string_view> HeaderText(std::span<const std::byte> file,
                                            std::string_view source) {
  if (file.size() < kLengthBytes) {
    return RejectFile(source, StrCat("truncated: ", file.size(),
                                     " bytes, the header's length alone takes ", kLengthBytes));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t(file[i]) << (8 * i);
  if (length > kMaxSafetensorsHeaderBytes) {
    return RejectFile(source, StrCat("header length is ", length, " bytes, must be at most ",
                                     kMaxSafetensorsHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    return RejectFile(source, StrCat("header length is ", length, " bytes, but only ",
                                     file.size() - kLengthBytes, " follow in the file"));
  }
  return std::string_view(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
}

// Bytes of dtype x shape; nullopt when 64 bits cannot hold them.
std::optional<uint64_t> TensorBytes(TensorType type, const std::vector<int64_t>& shape) {
  uint64_t num_bytes = BytesOf(type);
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(num_bytes, uint64_t(extent), &num_bytes)) return std::nullopt;
  }
  return num_bytes;
}

// nullopt: not an array of non-negative integers.
std::optional<std::vector<int64_t>> ReadNumbers(const json* array) {
  if (array == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  numbers.reserve(array->size());
  for (const json& element : *array) {
    if (!element.is_number_unsigned() || element.get<uint64_t>() > uint64_t(INT64_MAX)) {
      return std::nullopt;
    }
    numbers.push_back(element.get<int64_t>());
  }
  return numbers;
}

absl::StatusOr<TensorEntry> ParseEntry(const std::string& name, const json& object,
                                       size_t tensors_start, size_t file_bytes,
                                       std::string_view source) {
  JsonFields fields(object, StrCat(source, ": tensor \"", ShortName(name), "\""));
  fields.RejectOthers({"dtype", "shape", "data_offsets"});
  TensorEntry entry{.name = name};
  const std::string dtype = fields.Text("dtype");
  std::optional<std::vector<int64_t>> shape = ReadNumbers(fields.Array("shape"));
  if (!shape) fields.Fail("shape must be an array of non-negative integers");
  const std::optional<std::vector<int64_t>> offsets = ReadNumbers(fields.Array("data_offsets"));
  if (!offsets || offsets->size() != 2) {
    fields.Fail("data_offsets must be two non-negative integers");
  }
  RETURN_IF_ERROR(fields.status());

  const std::optional<TensorType> type = ParseType(dtype);
  if (!type) {
    const auto name_of = [](const auto& each) { return each.second; };
    fields.Fail(
        StrCat("dtype is \"", ShortName(dtype), "\", must be one of ", StrJoin(kTypes, name_of)));
    return fields.status();
  }
  entry.type = *type;
  entry.shape = *std::move(shape);
  const size_t tensors_bytes = file_bytes - tensors_start;
  const uint64_t begin = uint64_t((*offsets)[0]), end = uint64_t((*offsets)[1]);
  if (begin > end || end > tensors_bytes) {
    fields.Fail(StrCat("data_offsets are [", begin, ", ", end,
                       "], must be ascending and within the file's ", tensors_bytes,
                       " bytes of tensors"));
    return fields.status();
  }
  const std::optional<uint64_t> num_bytes = TensorBytes(*type, entry.shape);
  if (num_bytes != end - begin) {
    fields.Fail(StrCat("data_offsets span ", end - begin, " bytes, but ", dtype, " [",
                       StrJoin(entry.shape), "] takes ",
                       num_bytes ? StrCat(*num_bytes) : std::string("more than 2^64")));
    return fields.status();
  }
  entry.begin = tensors_start + begin;
  entry.end = tensors_start + end;
  if (entry.begin % BytesOf(*type) != 0) {
    fields.Fail(StrCat("misaligned: starts at byte ", entry.begin,
                       " of the file, must be a multiple of ", BytesOf(*type), " for ", dtype));
  }
  RETURN_IF_ERROR(fields.status());
  return entry;
}

// `entries` in file order.
absl::Status CheckCover(const std::vector<TensorEntry>& entries, size_t tensors_start,
                        size_t file_bytes, std::string_view source) {
  size_t at = tensors_start;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != at) {
      return RejectFile(
          source, StrCat("tensor \"", ShortName(entry.name), "\" ",
                         entry.begin < at ? "overlaps the tensor before it: " : "leaves a gap: ",
                         "it starts at byte ", entry.begin - tensors_start, ", must start at ",
                         at - tensors_start));
    }
    at = entry.end;
  }
  if (at != file_bytes) {
    return RejectFile(source,
                      StrCat("the tensors end at byte ", at - tensors_start, " of ",
                             file_bytes - tensors_start, ": the rest belongs to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view NameOf(TensorType type) {
  for (const auto& [t, name] : kTypes) {
    if (t == type) return name;
  }
  return "?";
}

size_t BytesOf(TensorType type) {
  switch (type) {
    case TensorType::kI8:
    case TensorType::kU8:
    case TensorType::kBool: return 1;
    case TensorType::kF16:
    case TensorType::kBF16:
    case TensorType::kI16:
    case TensorType::kU16: return 2;
    case TensorType::kF32:
    case TensorType::kI32:
    case TensorType::kU32: return 4;
    case TensorType::kF64:
    case TensorType::kI64:
    case TensorType::kU64: return 8;
  }
  return 1;
}

absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                                std::string_view source) {
  ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, source));
  const size_t tensors_start = kLengthBytes + text.size();
  std::vector<TensorEntry> entries;
  const auto add = [&](const std::string& name, const json& object) -> absl::Status {
    if (name == "__metadata__") {
      JsonFields metadata(object, StrCat(source, ": __metadata__"));
      RETURN_IF_ERROR(metadata.status());
      for (const auto& [key, value] : object.items()) metadata.Text(key);
      return metadata.status();
    }
    ASSIGN_OR_RETURN(TensorEntry entry,
                     ParseEntry(name, object, tensors_start, file.size(), source));
    entries.push_back(std::move(entry));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachJsonMember(text, StrCat(source, ": header"), add));
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  RETURN_IF_ERROR(CheckCover(entries, tensors_start, file.size(), source));
  return entries;
}

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

// model.safetensors.index.json: each tensor's shard, a file beside the index.
absl::StatusOr<std::map<std::string, std::string>> ReadShardIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  ASSIGN_OR_RETURN(const json index, ParseJson(text, path));
  JsonFields fields(index, path);
  const json* weight_map = fields.Object("weight_map");
  if (weight_map == nullptr) {
    fields.Fail("weight_map is missing");
    return fields.status();
  }
  JsonFields shards(*weight_map, path + ": weight_map");
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, value] : weight_map->items()) {
    const std::string shard = shards.Text(tensor);
    if (shard.empty() || shard.find('/') != std::string::npos) {
      shards.Fail(StrCat("the shard of \"", ShortName(tensor), "\" is \"", ShortName(shard),
                         "\", must be the name of a file beside the index"));
    }
    shard_of[tensor] = shard;
  }
  RETURN_IF_ERROR(shards.status());
  return shard_of;
}

}  // namespace

int64_t TensorView::NumElements() const { return int64_t(bytes.size() / BytesOf(type)); }

bool TensorView::IsFloat() const {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}

std::vector<float> TensorView::ToFloats() const {
  switch (type) {
    case TensorType::kF32: return Widen<float, float>(bytes, [](float x) { return x; });
    case TensorType::kF16: return Widen<uint16_t, float>(bytes, FloatFromF16);
    case TensorType::kBF16: return Widen<uint16_t, float>(bytes, FloatFromBf16);
    default: break;
  }
  LSSAR_CHECK(false);  // ToFloats of another type
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
    case TensorType::kI8: return Widen<int8_t, int32_t>(bytes, narrow);
    case TensorType::kU8: return Widen<uint8_t, int32_t>(bytes, narrow);
    default: break;
  }
  LSSAR_CHECK(false);  // ToInts of another type
  return {};
}

namespace {

// The mapped ranges, for the signal handler: fixed memory, read without a lock.
struct MappedRange {
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  std::atomic<bool> is_used = false;
  std::atomic<bool> is_broken = false;  // a part has no content
};
constexpr size_t kMaxMappedRanges = 1024;
MappedRange mapped_ranges[kMaxMappedRanges];

std::mutex mapped_mutex;
int num_mapped = 0;                     // guarded by mapped_mutex
struct sigaction action_before_mapped;  // the same; valid while num_mapped > 0

uintptr_t PageOf(uintptr_t address) {
  const auto page_bytes = uintptr_t(sysconf(_SC_PAGESIZE));
  return address / page_bytes * page_bytes;
}

// SIGBUS in a mapped file: it was truncated, and the page behind its new end has no content. The
// process may serve another model meanwhile. So from there on the mapping becomes zeros, and the
// access repeats; CheckUnchanged ends the load.
void ReadZerosWhereTruncated(int signal, siginfo_t* information, void*) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(information->si_addr);
  for (MappedRange& range : mapped_ranges) {
    if (!range.is_used || address < range.begin || address >= range.end) continue;
    range.is_broken = true;
    const uintptr_t page = PageOf(address);
    if (mmap(reinterpret_cast<void*>(page), range.end - page, PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
      break;
    }
    errno = error;
    return;
  }
  sigaction(signal, &action_before_mapped, nullptr);  // the access repeats and meets the old action
  errno = error;
}

// Handles SIGBUS while any file is mapped. nullptr: not in this one, there are too many.
MappedRange* AddMappedRange(const void* address, size_t num_bytes) {
  const std::lock_guard lock(mapped_mutex);
  if (num_mapped++ == 0) {
    struct sigaction action = {};
    action.sa_sigaction = ReadZerosWhereTruncated;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, &action_before_mapped);
  }
  for (MappedRange& range : mapped_ranges) {
    if (range.is_used) continue;
    range.begin = reinterpret_cast<uintptr_t>(address);
    range.end = range.begin + num_bytes;
    range.is_broken = false;
    range.is_used = true;
    return &range;
  }
  return nullptr;
}

void RemoveMappedRange(MappedRange* range) {
  const std::lock_guard lock(mapped_mutex);
  if (range != nullptr) range->is_used = false;
  if (--num_mapped == 0) sigaction(SIGBUS, &action_before_mapped, nullptr);
}

}  // namespace

// A whole file, mapped read-only while the object lives.
class TensorFile::Mapping {
 public:
  static absl::StatusOr<std::unique_ptr<Mapping>> Open(const std::string& path) {
    ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(path));
    auto mapping = std::unique_ptr<Mapping>(new Mapping(std::move(file)));
    const size_t num_bytes = mapping->file_.NumBytes();
    if (num_bytes == 0) return mapping;
    void* const address =
        mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, mapping->file_.Descriptor(), 0);
    if (address == MAP_FAILED) return FileError(path, errno);
    mapping->address_ = address;
    mapping->range_ = AddMappedRange(address, num_bytes);
    return mapping;
  }

  ~Mapping() {
    if (address_ == nullptr) return;
    RemoveMappedRange(range_);
    munmap(address_, file_.NumBytes());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> Bytes() const {
    return {static_cast<const std::byte*>(address_), address_ == nullptr ? 0 : file_.NumBytes()};
  }
  const RegularFile& File() const { return file_; }
  absl::Status CheckUnchanged() const {
    RETURN_IF_ERROR(file_.CheckUnchanged());
    if (range_ == nullptr || !range_->is_broken) return absl::OkStatus();
    return absl::AbortedError(StrCat(file_.Path(), ": a part of the file could not be read"));
  }

 private:
  explicit Mapping(RegularFile file) : file_(std::move(file)) {}
  const RegularFile file_;
  void* address_ = nullptr;
  MappedRange* range_ = nullptr;
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
  // Dropping a page shared with a neighbouring tensor is safe: nothing here is ever written.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.bytes.data());
  const uintptr_t first_page = PageOf(begin);
  madvise(reinterpret_cast<void*>(first_page), begin - first_page + tensor.bytes.size(),
          MADV_DONTNEED);
}

absl::Status TensorFile::AddBytesTo(Sha256* hash) const {
  std::string block(size_t{1} << 20, '\0');
  for (const std::unique_ptr<Mapping>& mapping : mappings_) {
    const RegularFile& file = mapping->File();
    for (off_t at = 0;;) {
      const ssize_t num_read = pread(file.Descriptor(), block.data(), block.size(), at);
      if (num_read < 0 && errno == EINTR) continue;
      if (num_read < 0) return FileError(file.Path(), errno);
      if (num_read == 0) break;
      hash->Add(std::string_view(block).substr(0, size_t(num_read)));
      at += num_read;
    }
  }
  return CheckUnchanged();
}

absl::Status TensorFile::CheckUnchanged() const {
  for (const std::unique_ptr<Mapping>& mapping : mappings_) {
    RETURN_IF_ERROR(mapping->CheckUnchanged());
  }
  return absl::OkStatus();
}

absl::Status TensorFile::Add(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<Mapping> mapping, Mapping::Open(path));
  const std::span<const std::byte> file = mapping->Bytes();
  absl::StatusOr<std::vector<TensorEntry>> entries = ParseSafetensorsHeader(file, path);
  RETURN_IF_ERROR(mapping->CheckUnchanged());  // before what a header of zeros lacks
  RETURN_IF_ERROR(entries.status());
  for (TensorEntry& entry : *entries) {
    TensorView view{.type = entry.type,
                    .shape = std::move(entry.shape),
                    .bytes = file.subspan(entry.begin, entry.end - entry.begin)};
    if (!tensors_.emplace(entry.name, std::move(view)).second) {
      return absl::InvalidArgumentError(
          StrCat(path, ": tensor \"", ShortName(entry.name), "\" is also in an earlier shard"));
    }
  }
  mappings_.push_back(std::move(mapping));
  paths_.push_back(path);
  return absl::OkStatus();
}

absl::StatusOr<TensorFile> TensorFile::Open(const std::string& path) {
  TensorFile file;
  RETURN_IF_ERROR(file.Add(path));
  return file;
}

absl::StatusOr<TensorFile> TensorFile::OpenModel(const std::string& directory) {
  const std::string single = StrCat(directory, "/model.safetensors");
  absl::StatusOr<TensorFile> whole = Open(single);
  if (!absl::IsNotFound(whole.status())) return whole;

  const std::string index_path = single + ".index.json";
  absl::StatusOr<std::map<std::string, std::string>> shard_of = ReadShardIndex(index_path);
  if (absl::IsNotFound(shard_of.status())) {
    return absl::NotFoundError(StrCat(single, ": no such file, and no ", index_path, " either"));
  }
  RETURN_IF_ERROR(shard_of.status());

  std::map<std::string, std::vector<std::string>> tensors_of;
  for (const auto& [tensor, shard] : *shard_of) tensors_of[shard].push_back(tensor);
  TensorFile file;
  for (const auto& [shard, tensors] : tensors_of) {
    const auto is_there = [&](const std::string& tensor) { return file.Find(tensor) != nullptr; };
    auto wrong = std::ranges::find_if(tensors, is_there);  // in an earlier shard
    RETURN_IF_ERROR(file.Add(StrCat(directory, "/", shard)));
    if (wrong == tensors.end()) wrong = std::ranges::find_if_not(tensors, is_there);
    if (wrong != tensors.end()) {
      return absl::InvalidArgumentError(
          StrCat(index_path, ": tensor \"", ShortName(*wrong), "\" is not in ", ShortName(shard)));
    }
  }
  for (const auto& [tensor, view] : file.tensors_) {
    if (!shard_of->contains(tensor)) {
      return absl::InvalidArgumentError(StrCat(index_path, ": tensor \"", ShortName(tensor),
                                               "\" is in a shard, but not in the index"));
    }
  }
  return file;
}

}  // namespace lssar
