#include "clients/cli/special_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace lssar::cli {

bool IsSpecialPiece(absl::string_view piece) {
  return piece.size() > 4 && absl::StartsWith(piece, "<|") && absl::EndsWith(piece, "|>") &&
         piece.substr(2, piece.size() - 4).find_first_of("<|> \n") == absl::string_view::npos;
}

std::string SpecialTokenFilter::Push(const v1::Delta& delta) {
  for (const v1::Token& token : delta.tokens()) {
    if (IsSpecialPiece(token.token().piece())) pieces_.insert(token.token().piece());
  }
  pending_ += delta.text();
  size_t num_held = 0;
  for (const std::string& piece : pieces_) {
    absl::StrReplaceAll({{piece, ""}}, &pending_);
  }
  for (const std::string& piece : pieces_) {
    const size_t longest = std::min(piece.size() - 1, pending_.size());
    for (size_t length = longest; length > num_held; --length) {
      if (absl::EndsWith(pending_, absl::string_view(piece).substr(0, length))) num_held = length;
    }
  }
  std::string shown = pending_.substr(0, pending_.size() - num_held);
  pending_.erase(0, shown.size());
  return shown;
}

std::string SpecialTokenFilter::Finish() { return std::exchange(pending_, ""); }

std::string WithoutSpecialTokens(const std::string& text, const std::vector<v1::Token>& tokens) {
  v1::Delta whole;
  whole.set_text(text);
  *whole.mutable_tokens() = {tokens.begin(), tokens.end()};
  SpecialTokenFilter filter;
  std::string shown = filter.Push(whole);
  return shown + filter.Finish();
}

}  // namespace lssar::cli
