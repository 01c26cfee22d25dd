#include "models/text/sentence_piece_library.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <utility>

namespace lssar {

struct SentencePieceLibrary::Processor {
  sentencepiece::SentencePieceProcessor library;
};

SentencePieceLibrary::SentencePieceLibrary(std::unique_ptr<Processor> processor, int num_pieces)
    : processor_(std::move(processor)), num_pieces_(num_pieces) {}

SentencePieceLibrary::~SentencePieceLibrary() = default;

std::unique_ptr<SentencePieceLibrary> SentencePieceLibrary::Load(std::string_view file,
                                                                 int num_pieces,
                                                                 std::string* error) {
  // One more piece, a user-defined symbol, which nothing merges with: field 1 of ModelProto, with
  // the fields piece (1), score (2, 0) and type (3, USER_DEFINED = 4) of a piece.
  std::string piece = "\x0A";
  piece += char(kContinuation.size());
  piece += kContinuation;
  piece += std::string("\x15\0\0\0\0\x18\x04", 7);
  std::string extended(file);
  extended += '\x0A';
  extended += char(piece.size());
  extended += piece;
  auto processor = std::make_unique<Processor>();
  const auto status = processor->library.LoadFromSerializedProto(extended);
  if (!status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  if (processor->library.GetPieceSize() != num_pieces + 1) {
    *error = "it has another number of pieces";
    return nullptr;
  }
  // A unigram model could prefer four unknown characters.
  std::unique_ptr<SentencePieceLibrary> loaded(
      new SentencePieceLibrary(std::move(processor), num_pieces));
  std::vector<int32_t> ids;
  if (!loaded->Encode("a", /*continues=*/true, &ids, error)) return nullptr;
  return loaded;
}

bool SentencePieceLibrary::Encode(std::string_view text, bool continues, std::vector<int32_t>* ids,
                                  std::string* error) const {
  if (text.find(kContinuation) != std::string_view::npos) {
    *error =
        "a text must not hold the noncharacters U+FDD0 U+FDEF U+FDD1 "
        "U+FDEE in a row";
    return false;
  }
  std::vector<int> found;
  std::string marked;
  if (continues) {
    marked = kContinuation;
    marked += text;
    text = marked;
  }
  const auto status = processor_->library.Encode(text, &found);
  if (!status.ok()) {
    *error = status.ToString();
    return false;
  }
  // A dummy prefix may stand before the mark.
  const auto mark = std::ranges::find(found, num_pieces_);
  const auto begin = continues && mark != found.end() ? mark + 1 : found.begin();
  if (continues != (mark != found.end()) ||
      std::find(begin, found.end(), num_pieces_) != found.end()) {
    *error = "its scores or its rules are in the way of user-defined symbols";
    return false;
  }
  ids->insert(ids->end(), begin, found.end());
  return true;
}

}  // namespace lssar
