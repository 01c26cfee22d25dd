#include "models/template_lexer.h"
#include "kernels/str_cat.h"
#include "models/trim.h"

#include <algorithm>
#include <utility>

namespace lssar {
namespace {

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<TemplateToken>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = FindTag();
      LexText(tag);
      if (tag == source_.size()) break;
      at_ = tag;
      const absl::Status status = source_[tag + 1] == '#' ? SkipComment() : LexTag();
      if (!status.ok()) return status;
    }
    tokens_.push_back({.kind = TokenKind::kEnd, .at = source_.size()});
    return std::move(tokens_);
  }

 private:
  size_t FindTag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) {
        return i;
      }
    }
    return source_.size();
  }

  // Text up to the tag at `end`, less the whitespace that the tags on both sides take.
  void LexText(size_t end) {
    std::string_view text = source_.substr(at_, end - at_);
    const size_t text_at = at_;
    if (end == source_.size()) {
      if (text.ends_with('\n')) text.remove_suffix(1);
    } else if (source_.substr(end + 2).starts_with('-')) {
      text = TrimRight(text);
    } else if (source_[end + 1] != '{' && IsFirstOnLine(end)) {
      while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    }
    if (strip_left_) text = TrimLeft(text);
    if (drop_newline_ && text.starts_with('\n')) text.remove_prefix(1);
    if (!text.empty()) {
      tokens_.push_back({.kind = TokenKind::kText, .text = std::string(text), .at = text_at});
    }
  }

  bool IsFirstOnLine(size_t tag) const {
    const size_t newline = source_.substr(0, tag).rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    return source_.substr(line, tag - line).find_first_not_of(" \t") == std::string_view::npos;
  }

  // After a tag's closing sign: what it takes from the text behind it.
  void EndTag(bool has_dash, bool is_block) {
    strip_left_ = has_dash;
    drop_newline_ = is_block && !has_dash;
  }

  absl::Status SkipComment() {
    const size_t close = source_.find("#}", at_ + 2);
    if (close == std::string_view::npos) {
      return TemplateError(source_, at_, "comment {# does not end");
    }
    EndTag(source_[close - 1] == '-', /*is_block=*/true);
    at_ = close + 2;
    return absl::OkStatus();
  }

  absl::Status LexTag() {
    const size_t open = at_;
    const bool is_block = source_[at_ + 1] == '%';
    const std::string_view close = is_block ? "%}" : "}}";
    tokens_.push_back(
        {.kind = is_block ? TokenKind::kOpenBlock : TokenKind::kOpenPrint, .at = at_});
    at_ += 2;
    if (Rest().starts_with("-")) ++at_;
    while (at_ < source_.size()) {
      const bool has_dash = Rest().starts_with("-");
      if (Rest().substr(has_dash ? 1 : 0).starts_with(close)) {
        tokens_.push_back(
            {.kind = is_block ? TokenKind::kCloseBlock : TokenKind::kClosePrint, .at = at_});
        at_ += close.size() + (has_dash ? 1 : 0);
        EndTag(has_dash, is_block);
        return absl::OkStatus();
      }
      const absl::Status status = LexToken();
      if (!status.ok()) return status;
    }
    return TemplateError(source_, open, StrCat("tag does not end with ", close));
  }

  absl::Status LexToken() {
    const char c = source_[at_];
    if (kWhitespace.find(c) != std::string_view::npos) {
      ++at_;
      return absl::OkStatus();
    }
    if (c == '\'' || c == '"') return LexString(c);
    TemplateToken token{.kind = TokenKind::kSign, .at = at_};
    size_t length = 1;
    const auto is_name = [](char x) {
      return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') || x == '_';
    };
    if (is_name(c)) {
      token.kind = TokenKind::kName;
      while (length < Rest().size() && is_name(Rest()[length])) ++length;
    } else if (Rest().starts_with("==") || Rest().starts_with("!=")) {
      length = 2;
    }
    token.text = std::string(Rest().substr(0, length));
    at_ += length;
    tokens_.push_back(std::move(token));
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    TemplateToken token{.kind = TokenKind::kString, .at = at_};
    for (++at_; at_ < source_.size(); ++at_) {
      const char c = source_[at_];
      if (c == quote) {
        ++at_;
        tokens_.push_back(std::move(token));
        return absl::OkStatus();
      }
      if (c != '\\') {
        token.text += c;
        continue;
      }
      if (++at_ == source_.size()) break;
      constexpr std::string_view kEscapes = "nrt\\'\"", kMeaning = "\n\r\t\\'\"";
      const size_t escape = kEscapes.find(source_[at_]);
      if (escape == std::string_view::npos) {
        return TemplateError(
            source_, at_ - 1,
            StrCat("found \\", source_.substr(at_, 1), ", strings know \\n \\r \\t \\\\ \\' \\\""));
      }
      token.text += kMeaning[escape];
    }
    return TemplateError(source_, token.at, "string does not end");
  }

  std::string_view Rest() const { return source_.substr(at_); }

  std::string_view source_;
  size_t at_ = 0;
  bool strip_left_ = false;
  bool drop_newline_ = false;
  std::vector<TemplateToken> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<TemplateToken>> LexTemplate(std::string_view source) {
  return Lexer(source).Run();
}

absl::Status TemplateError(std::string_view source, size_t at, std::string_view sentence) {
  const std::string_view before = source.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
  return absl::InvalidArgumentError(StrCat(line, ":", column, ": ", sentence));
}

}  // namespace lssar
