#include "models/text/added_tokens.h"

#include <algorithm>

#include "base/status_macros.h"
#include "models/text/tokenizer.h"

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

absl::Status AddedTokens::Split(std::string_view text, absl::FunctionRef<bool()> should_stop,
                                absl::FunctionRef<absl::Status(std::string_view, bool)> on_part,
                                std::vector<int32_t>* ids) const {
  constexpr size_t kSearchBytes = size_t{1} << 16;  // between two polls
  size_t begin = 0;
  for (size_t at = 0; at < text.size() && !IsEmpty();) {
    if (should_stop()) return EncodingStopped();
    const Match match = FindNext(text, at, at + kSearchBytes);
    if (match.begin == text.npos) {
      at += kSearchBytes;
      continue;
    }
    if (match.begin > begin) {
      RETURN_IF_ERROR(on_part(text.substr(begin, match.begin - begin), begin == 0));
    }
    ids->push_back(match.id);
    begin = at = match.begin + match.num_bytes;
  }
  return begin < text.size() ? on_part(text.substr(begin), begin == 0) : absl::OkStatus();
}

}  // namespace lssar
