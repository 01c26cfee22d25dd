#include "runtime/detokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lssar {

StopStrings::StopStrings(std::vector<std::string> strings, bool are_in_text)
    : strings_(std::move(strings)), are_in_text_(are_in_text) {
  for (const std::string& s : strings_) {
    LSSAR_CHECK(!s.empty());
    std::vector<int> borders(s.size() + 1, 0);
    for (size_t m = 1, border = 0; m < s.size(); ++m) {
      while (border > 0 && s[m] != s[border]) border = size_t(borders[border]);
      if (s[m] == s[border]) ++border;
      borders[m + 1] = int(border);
    }
    borders_.push_back(std::move(borders));
  }
}

int StopStrings::Advance(int i, int num_matched, char byte) const {
  const std::string& s = strings_[size_t(i)];
  while (num_matched > 0 && s[size_t(num_matched)] != byte) {
    num_matched = borders_[size_t(i)][size_t(num_matched)];
  }
  return s[size_t(num_matched)] == byte ? num_matched + 1 : 0;
}

StopMatcher::StopMatcher(std::shared_ptr<const StopStrings> strings)
    : strings_(std::move(strings)), num_matched_(size_t(strings_->NumStrings()), 0) {}

void StopMatcher::Push(std::string_view text, std::string* out) {
  for (const char byte : text) {
    if (match_) return;
    withheld_.push_back(byte);
    size_t longest = 0;
    for (int i = 0; i < strings_->NumStrings(); ++i) {
      int& num_matched = num_matched_[size_t(i)];
      num_matched = strings_->Advance(i, num_matched, byte);
      const bool is_whole = size_t(num_matched) == strings_->String(i).size();
      if (is_whole && (!match_ || strings_->String(*match_).size() < size_t(num_matched)))
        match_ = i;
      longest = std::max(longest, size_t(num_matched));
    }
    if (match_) longest = strings_->AreInText() ? 0 : strings_->String(*match_).size();
    LSSAR_CHECK(longest <= withheld_.size());
    const size_t num_safe = withheld_.size() - longest;
    out->append(withheld_, 0, num_safe);
    withheld_.erase(0, num_safe);
  }
}

void StopMatcher::Finish(std::string* out) {
  if (!match_) out->append(withheld_);
  withheld_.clear();
}

Detokenizer::Detokenizer(const Tokenizer* tokenizer,
                         std::shared_ptr<const StopStrings> stop_strings, bool skips_special_tokens)
    : stop_strings_(std::move(stop_strings)) {
  if (tokenizer != nullptr) {
    decoder_.emplace(tokenizer, /*continues_text=*/true, skips_special_tokens);
  }
  if (stop_strings_ != nullptr) matcher_.emplace(stop_strings_);
}

void Detokenizer::Push(int32_t id, bool match, std::string* out) {
  matches_last_ = match;
  if (decoder_) Append(decoder_->Push(id), match, out);
}

void Detokenizer::Finish(std::string* out) {
  if (decoder_) Append(decoder_->Finish(), matches_last_, out);
  if (matcher_) matcher_->Finish(out);
}

const std::string* Detokenizer::StopString() const {
  if (!matcher_ || !matcher_->Match()) return nullptr;
  return &stop_strings_->String(*matcher_->Match());
}

void Detokenizer::Append(std::string_view text, bool match, std::string* out) {
  if (matcher_ && match) {
    matcher_->Push(text, out);
  } else {
    out->append(text);
  }
}

}  // namespace lssar
