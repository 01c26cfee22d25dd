// Encode, SplitStable and Decode of tokenizers of several kinds: ids of byte-level BPE are those of
// its definition.
// Input   a text; a byte: the tokenizer; a byte: where the text is split
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "base/utf8.h"
#include "models/text/pre_tokenizer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_files.h"
#include "tests/server/zoo_checkpoint.h"

namespace lssar {
namespace {

struct Kind {
  std::unique_ptr<Tokenizer> tokenizer;
  bool has_normalizer = false;
  std::optional<PreTokenizer> splitter = {};  // byte-level kinds
  bool is_gpt2 = false;
};

PreTokenizer Splitter(std::string_view pattern) {
  return PreTokenizer::Create({{.pattern = std::string(pattern)}}).value();
}

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
          .splitter = Splitter(pattern),
          .is_gpt2 = pattern == kGpt2Pattern};
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
void CheckGpt2Words(const PreTokenizer& own, std::string_view text) {
  static const PreTokenizer other = Splitter(StrCat("(?:", kGpt2Pattern, ")"));
  LSSAR_CHECK(WordsOf(own, text) == WordsOf(other, text));
}

// Merges the pair of the lowest rank, the leftmost first, until there is none. O(n^2).
void AppendIds(std::string_view word, std::vector<int32_t>* ids) {
  std::vector<int32_t> symbols;
  for (const char c : word) symbols.push_back(uint8_t(c));
  const auto rank_at = [&](size_t i) {
    size_t rank = 0;
    while (rank < kTokenizerMerges.size() && (kTokenizerMerges[rank].left != symbols[i] ||
                                              kTokenizerMerges[rank].right != symbols[i + 1])) {
      ++rank;
    }
    return rank;
  };
  while (true) {
    size_t best = kTokenizerMerges.size(), at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (const size_t rank = rank_at(i); rank < best) best = rank, at = i;
    }
    if (best == kTokenizerMerges.size()) break;
    symbols[at] = kTokenizerMerges[best].merged;
    symbols.erase(symbols.begin() + ptrdiff_t(at) + 1);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

void CheckIds(const PreTokenizer& splitter, std::string_view text, std::span<const int32_t> ids) {
  constexpr size_t kMaxBytes = 400;
  if (text.size() > kMaxBytes) return;
  std::vector<int32_t> expected;
  for (const std::string& word : WordsOf(splitter, text)) AppendIds(word, &expected);
  LSSAR_CHECK(std::ranges::equal(ids, expected));
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
  const bool comes_back = kind.splitter ? !kind.has_normalizer : !IsOwnText(text);
  if (comes_back) LSSAR_CHECK(Decode(*kind.tokenizer, *ids) == text);
  if (kind.splitter && !kind.has_normalizer) CheckIds(*kind.splitter, text, *ids);
  if (kind.is_gpt2) CheckGpt2Words(*kind.splitter, text);
  size_t cut = text.empty() ? 0 : bytes.back() * text.size() / 256;
  while (cut > 0 && (uint8_t(text[cut]) & 0xC0) == 0x80) --cut;  // between two characters
  CheckStableSplit(*kind.tokenizer, text.substr(0, cut), text.substr(cut));
}

}  // namespace lssar
