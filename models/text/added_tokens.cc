#include "models/text/added_tokens.h"

#include <algorithm>

namespace lssar {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool CoversSpace(std::string_view token) {
  if (token.front() == ' ') return token.size() == 1 || IsLetter(token[1]);
  for (size_t i = 1; i < token.size(); ++i) {
    if (token[i] == ' ' && IsLetter(token[i - 1])) return true;
  }
  return false;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<std::pair<std::string, int32_t>>& tokens)
    : trie_(tokens) {
  for (const auto& [text, id] : tokens) {
    max_bytes_ = std::max(max_bytes_, text.size());
    may_cover_space_ = may_cover_space_ || CoversSpace(text);
  }
}

AddedTokens::Match AddedTokens::FindNext(std::string_view text, size_t from, size_t until) const {
  until = std::min(until, text.size());
  for (size_t begin = from; begin < until; ++begin) {
    if (!trie_.MayBegin(text[begin])) continue;
    const auto [num_bytes, id] = trie_.FindLongest(text.substr(begin));
    if (num_bytes > 0) return {.begin = begin, .num_bytes = num_bytes, .id = id};
  }
  return {};
}

}  // namespace lssar
