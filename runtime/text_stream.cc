#include "runtime/text_stream.h"

#include <string_view>
#include <utility>

namespace lssar {

TextStream::TextStream(const Tokenizer* tokenizer, std::shared_ptr<const StopStrings> stop_strings)
    : stop_strings_(std::move(stop_strings)) {
  if (tokenizer != nullptr) decoder_.emplace(tokenizer, /*continues_text=*/true);
  if (stop_strings_ != nullptr) matcher_.emplace(stop_strings_);
}

void TextStream::Push(int32_t id, bool match, std::string* out) {
  if (decoder_) Match(decoder_->Push(id), match, out);
}

void TextStream::Finish(std::string* out) {
  if (decoder_) Match(decoder_->Finish(), /*match=*/true, out);
  if (matcher_) matcher_->Finish(out);
}

const std::string* TextStream::StopString() const {
  if (!matcher_ || !matcher_->Match()) return nullptr;
  return &stop_strings_->String(*matcher_->Match());
}

void TextStream::Match(std::string_view text, bool match, std::string* out) {
  if (matcher_ && match) {
    matcher_->Push(text, out);
  } else {
    out->append(text);
  }
}

}  // namespace lssar
