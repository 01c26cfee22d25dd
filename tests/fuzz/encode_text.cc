// Encode, SplitStable and Decode of tokenizers of several kinds.
// Input   a text; a byte: the tokenizer; a byte: where the text is split
#include <memory>
#include <string>
#include <vector>

#include "kernels/str_cat.h"
#include "models/pre_tokenizer.h"
#include "models/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_files.h"
#include "tests/server/zoo_checkpoint.h"

namespace lssar {
namespace {

struct Kind {
  std::unique_ptr<Tokenizer> tokenizer;
  bool has_normalizer = false;
  std::string_view pattern = {};  // byte-level kinds
};

std::string Quoted(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '\\' || c == '"') json += '\\';
    json += c;
  }
  return json + '"';
}

Kind MakeByteLevel(std::string_view normalizer, std::string_view pattern) {
  WriteFuzzFile(
      "tokenizer.json",
      TokenizerJson(normalizer, StrCat(R"({"type":"Sequence","pretokenizers":[)",
                                       R"({"type":"Split","pattern":{"Regex":)", Quoted(pattern),
                                       R"(},"behavior":"Isolated","invert":false},)",
                                       R"({"type":"ByteLevel","use_regex":false,)",
                                       R"("add_prefix_space":false}]})")));
  return {.tokenizer = LoadTokenizer(FuzzFolder(), kFuzzVocabSize).value(),
          .has_normalizer = normalizer != "null",
          .pattern = pattern};
}

std::vector<Kind> MakeKinds() {
  std::vector<Kind> kinds;
  kinds.push_back({.tokenizer = LoadTokenizer(std::string(kZooDirectory), 4096).value()});
  for (const std::string_view pattern :
       {kGpt2Pattern, kCl100kPattern, kQwen2Pattern, kO200kPattern}) {
    kinds.push_back(MakeByteLevel("null", pattern));
  }
  for (const std::string_view form : {"NFC", "NFKD"}) {
    kinds.push_back(MakeByteLevel(StrCat(R"({"type":")", form, "\"}"), kGpt2Pattern));
  }
  return kinds;
}

std::vector<std::string> WordsOf(const PreTokenizer& splitter, std::string_view text) {
  std::vector<std::string> words;
  const auto add = [&](std::string_view word) {
    words.emplace_back(word);
    return true;
  };
  LSSAR_CHECK(splitter
                  .Split(
                      text, true, [] { return false; }, add)
                  .ok());
  return words;
}

// GPT-2's pattern has code of its own for ASCII; in a group it is a pattern like any other.
void CheckGpt2Words(std::string_view text) {
  static const auto own = PreTokenizer::Create({{.pattern = std::string(kGpt2Pattern)}}).value();
  static const auto other =
      PreTokenizer::Create({{.pattern = StrCat("(?:", kGpt2Pattern, ")")}}).value();
  LSSAR_CHECK(WordsOf(own, text) == WordsOf(other, text));
}

// Role tokens in the text have no bytes, and U+2581 is SentencePiece's own sign for a space.
bool IsOwnText(std::string_view text) {
  for (const std::string_view own : {"<|", "</s>", "<s>", "<unk>", "\xE2\x96\x81"}) {
    if (text.find(own) != text.npos) return true;
  }
  return false;
}

}  // namespace

LSSAR_FUZZ_TARGET(encode_text) {
  static const std::vector<Kind> kinds = MakeKinds();
  if (bytes.size() < 2) return;
  const std::string_view text = TextOf(bytes.first(bytes.size() - 2));
  const Kind& kind = kinds[bytes[bytes.size() - 2] % kinds.size()];
  auto ids = kind.tokenizer->Encode(text);
  LSSAR_CHECK(ids.ok() == !FindInvalidUtf8(text));
  if (!ids.ok()) return;
  if (FaultIsPlanted() && text.find("\xE2\x82\xAC") != text.npos) ids->pop_back();
  for (const int32_t id : *ids) {
    LSSAR_CHECK(id >= 0 && id < kind.tokenizer->VocabSize());
  }
  const bool comes_back = kind.pattern.empty() ? !IsOwnText(text) : !kind.has_normalizer;
  if (comes_back) LSSAR_CHECK(Decode(*kind.tokenizer, *ids) == text);
  if (kind.pattern == kGpt2Pattern) CheckGpt2Words(text);
  size_t cut = text.empty() ? 0 : bytes.back() * text.size() / 256;
  while (cut > 0 && (uint8_t(text[cut]) & 0xC0) == 0x80) --cut;  // between two characters
  CheckStableSplit(*kind.tokenizer, text.substr(0, cut), text.substr(cut));
}

}  // namespace lssar
