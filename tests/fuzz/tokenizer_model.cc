// tokenizer.model (SentencePiece).
// Input   the file
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_files.h"

namespace lssar {

LSSAR_FUZZ_TARGET(tokenizer_model) {
  WriteFuzzFile("tokenizer.model", TextOf(bytes));
  CheckTokenizerFiles(FuzzFolder());
}

}  // namespace lssar
