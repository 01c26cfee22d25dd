#include "tests/files/mutate.h"

#include <algorithm>
#include <cctype>
#include <random>

namespace lssar::testing {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr size_t kMaxInsertedBytes = size_t{1} << 20;

constexpr std::string_view kNumbers[] = {"0",
                                         "-1",
                                         "1",
                                         "255",
                                         "65536",
                                         "2147483647",
                                         "2147483648",
                                         "4294967295",
                                         "4294967296",
                                         "-2147483648",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "1e308",
                                         "1e999",
                                         "-1e999",
                                         "0.5",
                                         "1e-320",
                                         "NaN",
                                         "100000000"};

class Mutation {
 public:
  Mutation(std::string_view bytes, std::span<const std::string_view> words, uint64_t seed)
      : bytes_(bytes), words_(words), random_(seed) {}

  std::string Run() {
    for (size_t changes = 1 + Below(4); changes > 0; --changes) Change();
    if (bytes_.size() > kMaxBytes) bytes_.resize(kMaxBytes);
    return std::move(bytes_);
  }

 private:
  size_t Below(size_t limit) { return limit == 0 ? 0 : size_t(random_() % limit); }
  // Often near the start, where a large file has its header.
  size_t Place() {
    constexpr size_t kHeaderBytes = 2048;
    const size_t limit = Below(2) == 0 ? bytes_.size() : std::min(bytes_.size(), kHeaderBytes);
    return Below(limit + 1);
  }
  // A length, short ones more often.
  size_t Length() { return Below(std::min(bytes_.size(), size_t{1} << Below(14)) + 1); }
  size_t LengthFrom(size_t at) { return std::min(Length(), bytes_.size() - at); }

  void Change() {
    const size_t at = Place();  // at most bytes_.size()
    switch (Below(11)) {
      case 0:
        if (at < bytes_.size()) bytes_[at] = char(random_());
        break;
      case 1:
        if (at < bytes_.size()) bytes_[at] = char(bytes_[at] ^ (1 << Below(8)));
        break;
      case 2: bytes_.erase(at, LengthFrom(at)); break;
      case 3: bytes_.resize(at); break;
      case 4: {
        const std::string part = bytes_.substr(at, LengthFrom(at));
        bytes_.insert(Place(), part);
        break;
      }
      case 5: {
        const std::string part = bytes_.substr(at, LengthFrom(at));
        bytes_.replace(Place(), 0, part);
        break;
      }
      case 6:
      case 7: InsertWord(at); break;
      case 8: ReplaceNumber(at); break;
      case 9: WriteInteger(at); break;
      case 10:
        for (char& byte : std::span(bytes_).subspan(at, std::min<size_t>(8, bytes_.size() - at))) {
          byte = char(random_());
        }
        break;
    }
  }

  void InsertWord(size_t at) {
    if (words_.empty()) return;
    const std::string_view word = words_[Below(words_.size())];
    // Mostly once; sometimes so often that recursion or quadratic time shows.
    const size_t count = Below(4) != 0 ? 1 : size_t{1} << Below(16);
    std::string inserted;
    for (size_t i = 0; i < count && inserted.size() < kMaxInsertedBytes; ++i) inserted += word;
    bytes_.insert(at, inserted);
  }

  void ReplaceNumber(size_t at) {
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    while (at < bytes_.size() && !is_digit(bytes_[at])) ++at;
    size_t end = at;
    while (end < bytes_.size() && is_digit(bytes_[end])) ++end;
    bytes_.replace(at, end - at, kNumbers[Below(std::size(kNumbers))]);
  }

  // An edge of the integers, little-endian, as binary formats have it.
  void WriteInteger(size_t at) {
    constexpr uint64_t kValues[] = {0,
                                    1,
                                    7,
                                    0x7F,
                                    0xFF,
                                    0xFFFF,
                                    0x7FFFFFFF,
                                    0xFFFFFFFF,
                                    uint64_t{1} << 40,
                                    ~uint64_t{0},
                                    ~uint64_t{0} >> 1};
    const uint64_t value = kValues[Below(std::size(kValues))];
    const size_t size = size_t{1} << Below(4);
    for (size_t i = 0; i < size && at + i < bytes_.size(); ++i) {
      bytes_[at + i] = char(value >> (8 * i));
    }
  }

  std::string bytes_;
  const std::span<const std::string_view> words_;
  std::mt19937_64 random_;
};

}  // namespace

std::string Mutate(std::string_view bytes, std::span<const std::string_view> words, uint64_t seed) {
  return Mutation(bytes, words, seed).Run();
}

}  // namespace lssar::testing
