// Ids -> text, whole UTF-8 characters at a time (tokenizer.h).
#include <utility>

#include "models/tokenizer.h"
#include "models/utf8.h"

namespace lssar {
namespace {

// Moves the characters that are whole from the front of `held` to the end of `text`. With `at_end`
// nothing stays: an unfinished character becomes one U+FFFD.
void TakeWhole(std::string& held, bool at_end, std::string& text) {
  std::string_view rest = held;
  while (!rest.empty()) {
    const Utf8Unit unit = NextUtf8(rest);
    if (unit.kind == Utf8Kind::kUnfinished && !at_end) break;
    text +=
        unit.kind == Utf8Kind::kCharacter ? rest.substr(0, unit.num_bytes) : kReplacementCharacter;
    rest.remove_prefix(unit.num_bytes);
  }
  held.erase(0, held.size() - rest.size());
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, bool continues_text)
    : tokenizer_(tokenizer), at_start_(!continues_text && tokenizer->AddsDummyPrefix()) {}

std::string StreamDecoder::Push(int32_t id) {
  std::string_view bytes = tokenizer_->PieceBytes(id);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (bytes.front() == ' ') bytes.remove_prefix(1);
  }
  held_ += bytes;
  std::string text;
  TakeWhole(held_, /*at_end=*/false, text);
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  TakeWhole(held_, /*at_end=*/true, text);
  return text;
}

std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  StreamDecoder decoder(&tokenizer, /*continues_text=*/false);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = NextUtf8(text.substr(at));
    if (unit.kind != Utf8Kind::kCharacter) return at;
    at += unit.num_bytes;
  }
  return std::nullopt;
}

}  // namespace lssar
