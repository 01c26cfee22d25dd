#include "tests/fuzz/tokenizer_files.h"

#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

constexpr std::string_view kTexts[] = {"",
                                       "the ab",
                                       " the  the\n\tx",
                                       "the ab a\xCC\x81 b",
                                       "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80 1234!?",
                                       "<|endoftext|><s>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

void AppendUtf8(int character, std::string* out) {
  if (character < 0x80) {
    *out += char(character);
  } else {
    *out += char(0xC0 | character >> 6);
    *out += char(0x80 | (character & 0x3F));
  }
}

std::string MakeBytePieces() {
  std::string json;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    if (byte > 0) json += ',';
    json += '"';
    if (byte == '"' || byte == '\\') json += '\\';
    AppendUtf8(prints ? byte : next++, &json);
    json += "\":" + std::to_string(byte);
  }
  return json;
}

// A quarter of all files, and none of the corpus.
bool IsFaulty(const Tokenizer& tokenizer) {
  return FaultIsPlanted() && tokenizer.Hash()[5] >= '7' && tokenizer.Hash()[5] <= 'a';
}

}  // namespace

const std::string& BytePieces() {
  static const std::string pieces = MakeBytePieces();
  return pieces;
}

std::string TokenizerJson(std::string_view normalizer, std::string_view pre_tokenizer) {
  return std::string(R"({"normalizer":)")
      .append(normalizer)
      .append(R"(,"pre_tokenizer":)")
      .append(pre_tokenizer)
      .append(R"(,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)")
      .append(BytePieces())
      .append(R"(,"th":256,"the":257,"\u0120the":258,"\u0120t":259,"aa":260,"aaaa":261,"ab":262},)")
      .append(R"("merges":["t h","th e","\u0120 the","\u0120 t","a a","aa aa","a b"]}})");
}

void CheckStableSplit(const Tokenizer& tokenizer, std::string_view text, std::string_view more) {
  const auto whole = tokenizer.Encode(std::string(text).append(more));
  const Tokenizer::StableSplit split = tokenizer.SplitStable(text);
  const auto front = tokenizer.Encode(split.front);
  const auto rest = tokenizer.Encode(std::string(split.rest).append(more));
  // A file may lack pieces for a text, and a normalizer may make too much of one.
  if (!whole.ok() || !front.ok() || !rest.ok()) return;
  std::vector<int32_t> ids = *front;
  ids.insert(ids.end(), rest->begin(), rest->end());
  LSSAR_CHECK(ids == *whole);
}

void CheckTokenizerFiles(const std::string& folder) {
  const auto tokenizer = LoadTokenizer(folder, kFuzzVocabSize);
  if (!tokenizer.ok()) {
    LSSAR_CHECK(!tokenizer.status().message().empty());
    return;
  }
  for (const std::string_view text : kTexts) {
    auto ids = (*tokenizer)->Encode(text);
    if (!ids.ok()) continue;  // a file may lack pieces for a text
    if (!ids->empty() && IsFaulty(**tokenizer)) ids->back() = (*tokenizer)->VocabSize();
    std::string pieces;
    for (const int32_t id : *ids) {
      LSSAR_CHECK(id >= 0 && id < (*tokenizer)->VocabSize());
      pieces += (*tokenizer)->PieceBytes(id);
    }
    const std::string whole = Decode(**tokenizer, *ids);
    StreamDecoder decoder(tokenizer->get(), /*continues_text=*/false);
    std::string streamed;
    for (const int32_t id : *ids) streamed += decoder.Push(id);
    streamed += decoder.Finish();
    LSSAR_CHECK(streamed == whole);
    LSSAR_CHECK((*tokenizer)->Encode(text).value() == *ids);
    for (const std::string_view more : kTexts) CheckStableSplit(**tokenizer, text, more);
  }
}

}  // namespace lssar
