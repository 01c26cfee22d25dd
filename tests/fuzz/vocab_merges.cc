// vocab.json and merges.txt.
// Input   merges.txt, a NUL byte, pieces to add to a vocab.json that has all bytes; without a NUL
//         byte the input is vocab.json
#include <string>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_files.h"

namespace lssar {
LSSAR_FUZZ_TARGET(vocab_merges) {
  const std::string_view text = TextOf(bytes);
  const size_t nul = text.find('\0');
  if (nul == text.npos) {
    WriteFuzzFile("vocab.json", text);
    WriteFuzzFile("merges.txt", "t h\n");
  } else {
    WriteFuzzFile("vocab.json", "{" + BytePieces() + std::string(text.substr(nul + 1)) + "}");
    WriteFuzzFile("merges.txt", text.substr(0, nul));
  }
  CheckTokenizerFiles();
}

}  // namespace lssar
