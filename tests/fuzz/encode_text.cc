// Encode and Decode of the shipped tokenizer: decoding gives the text back.
// Input   a text
#include <string>

#include "models/tokenizer.h"
#include "models/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/zoo_checkpoint.h"

namespace lssar {

LSSAR_FUZZ_TARGET(encode_text) {
  static const Checkpoint zoo = ZooCheckpointWithoutWeights();
  const std::string_view text = TextOf(bytes);
  auto ids = zoo.tokenizer->Encode(text);
  LSSAR_CHECK(ids.ok() == !FindInvalidUtf8(text));
  if (!ids.ok()) return;
  if (FaultIsPlanted() && text.find("\xE2\x82\xAC") != text.npos) ids->pop_back();
  for (const int32_t id : *ids) {
    LSSAR_CHECK(id >= 0 && id < zoo.tokenizer->VocabSize());
  }
  // Role tokens in the text have no bytes, and U+2581 is SentencePiece's own sign for a space.
  // Every other text comes back.
  if (text.find("<|") == text.npos && text.find("</s>") == text.npos &&
      text.find("<s>") == text.npos && text.find("<unk>") == text.npos &&
      text.find("\xE2\x96\x81") == text.npos) {
    LSSAR_CHECK(Decode(*zoo.tokenizer, *ids) == text);
  }
}

}  // namespace lssar
