// ParseSafetensorsHeader: every tensor lies in the file, aligned, as long as its type and shape
// say, and the tensors cover the data without gap or overlap.
// Input   size of the data (2 bytes), then the header, which is padded to 8 bytes; with the lowest
//         bit of the first byte set, the rest is the file itself
#include <algorithm>
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

}  // namespace

LSSAR_FUZZ_TARGET(safetensors_header) {
  if (bytes.size() < 2) return;
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
