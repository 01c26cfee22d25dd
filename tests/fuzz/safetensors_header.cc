// ParseSafetensorsHeader: every tensor lies in the file, aligned, as long as its type and shape
// say, and the tensors cover the data without gap or overlap. model.safetensors.index.json: every
// tensor of the shards is found.
// Input   size of the data (2 bytes), then the header, which is padded to 8 bytes; with the lowest
//         bit of the first byte set, the rest is the file itself; an input that starts with "{" is
//         an index of the shards a and b, which have one tensor each, "x" and "y"
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "models/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

constexpr size_t kFaultySum = 3;

std::vector<std::byte> FileOf(std::span<const uint8_t> bytes) {
  const auto data = std::as_bytes(bytes.subspan(2));
  if ((bytes[0] & 1) != 0) return {data.begin(), data.end()};
  const size_t header_bytes = (data.size() + 7) / 8 * 8;  // else no tensor is aligned
  std::vector<std::byte> file(8);
  for (size_t i = 0; i < 8; ++i) file[i] = std::byte((header_bytes >> (8 * i)) & 0xFF);
  file.insert(file.end(), data.begin(), data.end());
  file.resize(8 + header_bytes, std::byte{' '});
  file.resize(file.size() + ((size_t(bytes[0]) >> 1) | size_t(bytes[1]) << 7));
  return file;
}

void WriteShard(const std::string& name, const std::string& tensor) {
  std::string header = R"({")" + tensor + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize(64, ' ');
  WriteFuzzFile(name, std::string("\x40\0\0\0\0\0\0\0", 8) + header + "abcd");
}

void CheckIndex(std::string_view text) {
  static const std::string folder = [] {
    std::string path = FuzzFolder() + "/shards";
    std::filesystem::create_directory(path);
    WriteShard("shards/a", "x");
    WriteShard("shards/b", "y");
    return path;
  }();
  WriteFuzzFile("shards/model.safetensors.index.json", text);
  const auto file = TensorFile::OpenModel(folder);
  if (!file.ok()) {
    LSSAR_CHECK(!file.status().message().empty());
    return;
  }
  const bool has_escapes = text.find('\\') != text.npos;
  for (const std::string name : {"x", "y"}) {
    const TensorView* const tensor = file->Find(name);
    const bool is_named = text.find('"' + name + '"') != text.npos;
    LSSAR_CHECK(tensor == nullptr || (tensor->bytes.size() == 4 && (is_named || has_escapes)));
  }
}

}  // namespace

LSSAR_FUZZ_TARGET(safetensors_header) {
  if (bytes.size() < 2) return;
  if (bytes[0] == '{') return CheckIndex(TextOf(bytes));
  const std::vector<std::byte> file = FileOf(bytes);
  auto entries = ParseSafetensorsHeader(file, "fuzz");
  if (!entries.ok()) return;
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < 8; ++i) header_bytes |= uint64_t(file[i]) << (8 * i);
  if (FaultIsPlanted() && !entries->empty()) {  // a quarter of all files, and none of the corpus
    size_t sum = 0;
    for (const std::byte byte : file) sum += size_t(byte);
    if (sum % 4 == kFaultySum) ++entries->back().end;
  }
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const TensorEntry& entry : *entries) {
    size_t num_bytes = BytesOf(entry.type);
    for (const int64_t size : entry.shape) {
      LSSAR_CHECK(size >= 0);
      LSSAR_CHECK(!__builtin_mul_overflow(num_bytes, size_t(size), &num_bytes));
    }
    LSSAR_CHECK(entry.begin <= entry.end && entry.end <= file.size());
    LSSAR_CHECK(entry.end - entry.begin == num_bytes);
    LSSAR_CHECK(entry.begin % BytesOf(entry.type) == 0);
    ranges.emplace_back(entry.begin, entry.end);
  }
  std::sort(ranges.begin(), ranges.end());
  size_t covered = 8 + header_bytes;
  for (const auto& [begin, end] : ranges) {
    LSSAR_CHECK(begin == covered);
    covered = end;
  }
  LSSAR_CHECK(covered == file.size());
}

}  // namespace lssar
