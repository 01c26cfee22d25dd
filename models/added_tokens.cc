#include "models/added_tokens.h"

#include <algorithm>
#include <cstddef>

namespace lssar {

AddedTokens::AddedTokens(std::vector<std::pair<std::string, int32_t>> tokens)
    : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, std::ranges::greater(), [](const auto& t) { return t.first.size(); });
}

void AddedTokens::Split(std::string_view text, absl::FunctionRef<void(std::string_view)> take_text,
                        absl::FunctionRef<void(int32_t)> take_id) const {
  // Where each token stands next. Kept from cut to cut: looking for all of them anew would read a
  // text of many cuts as often.
  std::vector<size_t> places(tokens_.size(), 0);
  for (size_t i = 0; i < tokens_.size(); ++i) places[i] = text.find(tokens_[i].first);
  for (size_t begin = 0; begin < text.size();) {
    const auto next = std::ranges::min_element(places);
    const size_t at = next == places.end() ? text.npos : *next;
    if (at > begin) take_text(text.substr(begin, at == text.npos ? at : at - begin));
    if (at == text.npos) return;
    const auto& [content, id] = tokens_[size_t(next - places.begin())];
    take_id(id);
    begin = at + content.size();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (places[i] < begin) places[i] = text.find(tokens_[i].first, begin);
    }
  }
}

}  // namespace lssar
