// tokenizer.json.
// Input   the file; "@" stands for the 256 byte pieces of a vocabulary, which ByteLevel needs, "#"
//         for those of byte_fallback
#include <string>

#include "absl/strings/str_format.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_files.h"

namespace lssar {

namespace {

std::string MakeFallbackPieces() {
  std::string json;
  for (int byte = 0; byte < 256; ++byte) {
    json += absl::StrFormat("%s\"<0x%02X>\":%d", byte > 0 ? "," : "", byte, byte);
  }
  return json;
}

}  // namespace

LSSAR_FUZZ_TARGET(tokenizer_json) {
  static const std::string fallback_pieces = MakeFallbackPieces();
  std::string text(TextOf(bytes));
  const size_t at = text.find_first_of("@#");
  if (at != text.npos) text.replace(at, 1, text[at] == '@' ? BytePieces() : fallback_pieces);
  WriteFuzzFile("tokenizer.json", text);
  CheckTokenizerFiles(FuzzFolder());
}

}  // namespace lssar
