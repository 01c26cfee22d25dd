// tokenizer.json.
// Input   the file; "@" stands for the 256 byte pieces of a vocabulary, which every file needs
#include <string>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_files.h"

namespace lssar {

LSSAR_FUZZ_TARGET(tokenizer_json) {
  std::string text(TextOf(bytes));
  const size_t at = text.find('@');
  if (at != text.npos) text.replace(at, 1, BytePieces());
  WriteFuzzFile("tokenizer.json", text);
  CheckTokenizerFiles(FuzzFolder());
}

}  // namespace lssar
