#include "models/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/bpe_files.h"
#include "models/text/bpe_tokenizer.h"
#include "models/text/sentence_piece_tokenizer.h"

namespace lssar {
namespace {

// Moves the complete characters from the front of `pending` to the end of `text`. With `at_end`
// nothing stays: an unfinished character becomes one U+FFFD.
void MoveCompleteCharacters(bool at_end, std::string* pending, std::string* text) {
  std::string_view rest = *pending;
  while (!rest.empty()) {
    const Utf8Unit unit = NextUtf8(rest);
    if (unit.kind == Utf8Kind::kUnfinished && !at_end) break;
    *text +=
        unit.kind == Utf8Kind::kCharacter ? rest.substr(0, unit.num_bytes) : kReplacementCharacter;
    rest.remove_prefix(unit.num_bytes);
  }
  pending->erase(0, pending->size() - rest.size());
}

}  // namespace

absl::Status CheckTokenizerText(std::string_view text, absl::FunctionRef<bool()> should_stop) {
  constexpr size_t kBytesPerPoll = size_t{1} << 16;
  for (size_t begin = 0; begin < text.size();) {
    if (should_stop()) return absl::CancelledError("the encoding was stopped");
    size_t end = std::min(begin + kBytesPerPoll, text.size());
    // Not within a character, which has at most three bytes behind its first.
    for (int left = 3; left > 0 && end < text.size() && (uint8_t(text[end]) & 0xC0) == 0x80;
         --left) {
      --end;
    }
    if (FindInvalidUtf8(text.substr(begin, end - begin))) return CheckUtf8(text);
    begin = end;
  }
  return absl::OkStatus();
}

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, bool continues_text)
    : tokenizer_(tokenizer), at_start_(!continues_text && tokenizer->AddsDummyPrefix()) {}

std::string StreamDecoder::Push(int32_t id) {
  std::string_view bytes = tokenizer_->PieceBytes(id);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (bytes.front() == ' ') bytes.remove_prefix(1);
  }
  pending_ += bytes;
  std::string text;
  MoveCompleteCharacters(/*at_end=*/false, &pending_, &text);
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  MoveCompleteCharacters(/*at_end=*/true, &pending_, &text);
  return text;
}

std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  StreamDecoder decoder(&tokenizer, /*continues_text=*/false);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory,
                                                         int vocab_size) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> sentence_piece =
      LoadSentencePieceTokenizer(directory + "/tokenizer.model", vocab_size);
  if (!absl::IsNotFound(sentence_piece.status())) return sentence_piece;
  for (const auto read : {ReadTokenizerJson, ReadVocabularyAndMerges, ReadTiktokenFile}) {
    absl::StatusOr<BpeVocabulary> vocabulary = read(directory, vocab_size);
    if (absl::IsNotFound(vocabulary.status())) continue;
    RETURN_IF_ERROR(vocabulary.status());
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeBpeTokenizer(*std::move(vocabulary));
    if (tokenizer.ok()) return tokenizer;
    return absl::InvalidArgumentError(
        StrCat(directory, ": tokenizer: ", tokenizer.status().message()));
  }
  return absl::NotFoundError(StrCat(directory, ": no file of a tokenizer"));
}

}  // namespace lssar
