// What a constraint has to allow, by PCRE2, and a tokenizer that is a list of pieces.
#ifndef LSSAR_TESTS_SUPPORT_REGEX_ORACLE_H_
#define LSSAR_TESTS_SUPPORT_REGEX_ORACLE_H_

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/str_cat.h"
#include "models/text/tokenizer.h"

namespace lssar {

// Whether a text, of bytes, begins one that matches, or matches.
class RegexOracle {
 public:
  explicit RegexOracle(const std::string& wanted) {
    // Not ENDANCHORED, which knows no partial match.
    const std::string pattern = StrCat("(?:", wanted, ")\\z");
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_ANCHORED, &error, &offset, nullptr);
    LSSAR_CHECK(code_ != nullptr);
    pcre2_jit_compile(code_, PCRE2_JIT_PARTIAL_HARD | PCRE2_JIT_COMPLETE);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~RegexOracle() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  RegexOracle(const RegexOracle&) = delete;
  RegexOracle& operator=(const RegexOracle&) = delete;

  bool Begins(const std::string& text) const {
    const int result = Match(text, PCRE2_PARTIAL_HARD);
    return result >= 0 || result == PCRE2_ERROR_PARTIAL;
  }
  bool Matches(const std::string& text) const { return Match(text, 0) >= 0; }
  // A match took more work than PCRE2 allows: not all answers so far are right.
  bool HasGivenUp() const { return has_given_up_; }

 private:
  int Match(const std::string& text, uint32_t options) const {
    const int result = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                   options, match_, nullptr);
    if (result < 0 && result != PCRE2_ERROR_NOMATCH && result != PCRE2_ERROR_PARTIAL) {
      has_given_up_ = true;
    }
    return result;
  }
  mutable bool has_given_up_ = false;
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

// Only decodes. The piece at `special` is a special token; -1: none is.
class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces, int32_t special = -1)
      : pieces_(std::move(pieces)), special_(special) {}

  int VocabSize() const override { return int(pieces_.size()); }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view,
                                              absl::FunctionRef<bool()>) const override {
    return absl::UnimplementedError("only decodes");
  }
  int MaxPieceBytes() const override { return 16; }
  std::string_view PieceBytes(int32_t id) const override { return pieces_[size_t(id)]; }
  std::optional<int32_t> FindSpecialToken(std::string_view text) const override {
    if (special_ < 0 || text != pieces_[size_t(special_)]) return std::nullopt;
    return special_;
  }
  bool AddsDummyPrefix() const override { return false; }
  std::string_view Hash() const override { return "pieces"; }

 private:
  const std::vector<std::string> pieces_;
  const int32_t special_;
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_REGEX_ORACLE_H_
