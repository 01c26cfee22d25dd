#include "models/safetensors_header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "kernels/str_cat.h"
#include "models/json_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;

constexpr std::array<std::pair<TensorType, std::string_view>, 6> kTypes{{
    {TensorType::kF32, "F32"},
    {TensorType::kF16, "F16"},
    {TensorType::kBF16, "BF16"},
    {TensorType::kI32, "I32"},
    {TensorType::kI64, "I64"},
    {TensorType::kU8, "U8"},
}};

absl::Status Refuse(std::string_view source, std::string_view sentence) {
  return absl::InvalidArgumentError(StrCat(source, ": ", sentence));
}

std::optional<TensorType> ParseType(std::string_view name) {
  for (const auto& [type, type_name] : kTypes) {
    if (type_name == name) return type;
  }
  return std::nullopt;
}

// The header's JSON text. Little-endian length first, whatever the machine.
absl::StatusOr<std::string_view> HeaderText(std::span<const std::byte> file,
                                            std::string_view source) {
  if (file.size() < kLengthBytes) {
    return Refuse(source, StrCat("truncated: ", file.size(),
                                 " bytes, the header's length alone takes ", kLengthBytes));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t(file[i]) << (8 * i);
  if (length > kMaxSafetensorsHeaderBytes) {
    return Refuse(source, StrCat("header length is ", length, " bytes, must be at most ",
                                 kMaxSafetensorsHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    return Refuse(source, StrCat("header length is ", length, " bytes, but only ",
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

// Fills `numbers` with an array of non-negative integers; false when it is something else.
bool AttentionStatsBuffer(const json* array, std::vector<int64_t>& numbers) {
  if (array == nullptr) return false;
  for (const json& element : *array) {
    if (!element.is_number_unsigned() || element.get<uint64_t>() > uint64_t(INT64_MAX))
      return false;
    numbers.push_back(element.get<int64_t>());
  }
  return true;
}

absl::StatusOr<TensorEntry> ParseEntry(const std::string& name, const json& object,
                                       size_t tensors_start, size_t file_bytes,
                                       std::string_view source) {
  JsonFields fields(object, StrCat(source, ": tensor \"", name, "\""));
  fields.RefuseOthers({"dtype", "shape", "data_offsets"});
  TensorEntry entry{.name = name};
  const std::string dtype = fields.Text("dtype");
  std::vector<int64_t> offsets;
  if (!AttentionStatsBuffer(fields.Array("shape"), entry.shape)) {
    fields.Fail("shape must be an array of non-negative integers");
  }
  if (!AttentionStatsBuffer(fields.Array("data_offsets"), offsets) || offsets.size() != 2) {
    fields.Fail("data_offsets must be two non-negative integers");
  }
  if (!fields.status().ok()) return fields.status();

  const std::optional<TensorType> type = ParseType(dtype);
  if (!type) {
    fields.Fail(StrCat("dtype is \"", dtype, "\", must be one of F32, F16, BF16, I32, I64, U8"));
    return fields.status();
  }
  entry.type = *type;
  const size_t tensors_bytes = file_bytes - tensors_start;
  const uint64_t begin = uint64_t(offsets[0]), end = uint64_t(offsets[1]);
  if (begin > end || end > tensors_bytes) {
    fields.Fail(StrCat("data_offsets are [", begin, ", ", end,
                       "], must rise and stay within the file's ", tensors_bytes,
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
  if (!fields.status().ok()) return fields.status();
  return entry;
}

// `entries` in file order.
absl::Status CheckCover(const std::vector<TensorEntry>& entries, size_t tensors_start,
                        size_t file_bytes, std::string_view source) {
  size_t at = tensors_start;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != at) {
      return Refuse(source,
                    StrCat("tensor \"", entry.name, "\" ",
                           entry.begin < at ? "overlaps the one before: " : "leaves a gap: ",
                           "it starts at byte ", entry.begin - tensors_start, ", must start at ",
                           at - tensors_start));
    }
    at = entry.end;
  }
  if (at != file_bytes) {
    return Refuse(source, StrCat("the tensors end at byte ", at - tensors_start, " of ",
                                 file_bytes - tensors_start, ": the rest belongs to none"));
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
    case TensorType::kU8: return 1;
    case TensorType::kF16:
    case TensorType::kBF16: return 2;
    case TensorType::kF32:
    case TensorType::kI32: return 4;
    case TensorType::kI64: return 8;
  }
  return 1;
}

absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                                std::string_view source) {
  absl::StatusOr<std::string_view> text = HeaderText(file, source);
  if (!text.ok()) return text.status();
  absl::StatusOr<json> header = ParseJson(*text, StrCat(source, ": header"));
  if (!header.ok()) return header.status();
  if (!header->is_object()) return Refuse(source, "header is not a JSON object");

  const size_t tensors_start = kLengthBytes + text->size();
  std::vector<TensorEntry> entries;
  for (const auto& [name, object] : header->items()) {
    if (name == "__metadata__") {
      JsonFields metadata(object, StrCat(source, ": __metadata__"));
      if (!metadata.status().ok()) return metadata.status();
      for (const auto& [key, value] : object.items()) metadata.Text(key);
      if (!metadata.status().ok()) return metadata.status();
      continue;
    }
    absl::StatusOr<TensorEntry> entry =
        ParseEntry(name, object, tensors_start, file.size(), source);
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const absl::Status cover = CheckCover(entries, tensors_start, file.size(), source);
  if (!cover.ok()) return cover;
  return entries;
}

}  // namespace lssar
