// Encodes and decodes texts for tokenizer_differential_test.py and tests/bench/tokenizer_bench.py:
//
//   tokenize_texts DIRECTORY VOCAB_SIZE           texts from stdin, ids and texts to stdout
//   tokenize_texts DIRECTORY VOCAB_SIZE --time N  one text from stdin; to stdout the CPU seconds
//                                                 to load the tokenizer and of N encodings
//
// On stdin a text is its size (32 bits, little endian) and its bytes; on stdout there are for each
// the number of ids, the ids, the size of the decoded text and its bytes.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "models/text/tokenizer.h"

namespace lssar {
namespace {

bool ReadText(std::string* text) {
  uint32_t size = 0;
  if (std::fread(&size, sizeof(size), 1, stdin) != 1) return false;
  text->resize(size);
  LSSAR_CHECK(std::fread(text->data(), 1, size, stdin) == size);
  return true;
}

void Write(const void* bytes, size_t num_bytes) {
  LSSAR_CHECK(std::fwrite(bytes, 1, num_bytes, stdout) == num_bytes);
}

void WriteSize(size_t size) {
  const auto size32 = uint32_t(size);
  Write(&size32, sizeof(size32));
}

double CpuSeconds() {
  timespec now{};
  LSSAR_CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

int Main(int argc, char** argv) {
  LSSAR_CHECK(argc == 3 || argc == 5);
  const double start = CpuSeconds();
  const auto tokenizer = LoadTokenizer(argv[1], std::atoi(argv[2]));
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  const double load_seconds = CpuSeconds() - start;
  std::string text;
  if (argc == 5) {
    LSSAR_CHECK(std::string_view(argv[3]) == "--time" && ReadText(&text));
    std::printf("%.6f\n", load_seconds);
    for (int left = std::atoi(argv[4]); left > 0; --left) {
      const double begin = CpuSeconds();
      LSSAR_CHECK((*tokenizer)->Encode(text).ok());
      std::printf("%.6f\n", CpuSeconds() - begin);
    }
    return 0;
  }
  while (ReadText(&text)) {
    const auto ids = (*tokenizer)->Encode(text);
    if (!ids.ok()) {
      std::fprintf(stderr, "%s\n", ids.status().ToString().c_str());
      return 1;
    }
    WriteSize(ids->size());
    Write(ids->data(), ids->size() * sizeof(int32_t));
    const std::string decoded = Decode(**tokenizer, *ids);
    WriteSize(decoded.size());
    Write(decoded.data(), decoded.size());
  }
  return 0;
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) { return lssar::Main(argc, argv); }
