// vocab.json and merges.txt; tokenizer.tiktoken and tokenizer_config.json.
// Input   merges.txt, a NUL byte, pieces to add to a vocab.json that has all bytes
//         "+", tokenizer_config.json, a NUL byte, added_tokens.json, beside such a vocab.json
//         "=", lines to add to a tokenizer.tiktoken that has all bytes, a NUL byte,
//         tokenizer_config.json
//         without a NUL byte: vocab.json
#include <filesystem>
#include <string>

#include "absl/strings/escaping.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_files.h"

namespace lssar {
namespace {

std::string MakeByteLines() {
  std::string lines;
  for (int byte = 0; byte < 256; ++byte) {
    lines += absl::Base64Escape(std::string(1, char(byte))) + ' ' + std::to_string(byte) + '\n';
  }
  return lines;
}

std::string MakeFolder(const std::string& name) {
  std::string path = FuzzFolder() + "/" + name;
  std::filesystem::create_directory(path);
  return path;
}

void CheckTokensBeside(std::string_view config, std::string_view added) {
  static const std::string folder = MakeFolder("beside");
  WriteFuzzFile("beside/vocab.json", "{" + BytePieces() + ",\"th\":256}");
  WriteFuzzFile("beside/merges.txt", "t h\n");
  WriteFuzzFile("beside/tokenizer_config.json", config);
  WriteFuzzFile("beside/added_tokens.json", added);
  CheckTokenizerFiles(folder);
}

void CheckTiktoken(std::string_view lines, std::string_view config) {
  static const std::string byte_lines = MakeByteLines();
  static const std::string folder = MakeFolder("tiktoken");
  WriteFuzzFile("tiktoken/tokenizer.tiktoken", byte_lines + std::string(lines));
  WriteFuzzFile("tiktoken/tokenizer_config.json", config);
  CheckTokenizerFiles(folder);
}

}  // namespace

LSSAR_FUZZ_TARGET(vocab_merges) {
  const std::string_view text = TextOf(bytes);
  const size_t nul = text.find('\0');
  if (text.starts_with('+') && nul != text.npos) {
    return CheckTokensBeside(text.substr(1, nul - 1), text.substr(nul + 1));
  }
  if (text.starts_with('=') && nul != text.npos) {
    return CheckTiktoken(text.substr(1, nul - 1), text.substr(nul + 1));
  }
  if (nul == text.npos) {
    WriteFuzzFile("vocab.json", text);
    WriteFuzzFile("merges.txt", "t h\n");
  } else {
    WriteFuzzFile("vocab.json", "{" + BytePieces() + std::string(text.substr(nul + 1)) + "}");
    WriteFuzzFile("merges.txt", text.substr(0, nul));
  }
  CheckTokenizerFiles(FuzzFolder());
}

}  // namespace lssar
