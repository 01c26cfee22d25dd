// Tokens in, text out, incrementally: whole UTF-8 characters, and nothing of a stop string.
#ifndef LSSAR_RUNTIME_DETOKENIZER_H_
#define LSSAR_RUNTIME_DETOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tokenizer.h"

namespace lssar {

// The stop strings of a request, compiled once and shared by its choices. Immutable.
class StopStrings {
 public:
  // `are_in_text`: the text ends behind the match, not before it.
  // Requires  no string is empty
  explicit StopStrings(std::vector<std::string> strings, bool are_in_text = false);

  bool AreInText() const { return are_in_text_; }

  int NumStrings() const { return int(strings_.size()); }
  const std::string& String(int i) const { return strings_[size_t(i)]; }

  // The number of bytes of string i that are matched after `byte` follows `num_matched` (< its
  // length) matched bytes.
  // Cost      amortised O(1) over a text
  // Source    Knuth, Morris, Pratt: Fast pattern matching in strings (1977)
  int Advance(int i, int num_matched, char byte) const;

 private:
  std::vector<std::string> strings_;
  bool are_in_text_;
  // borders_[i][m]: length of the longest proper prefix of string i that ends its first m bytes.
  std::vector<std::vector<int>> borders_;
};

// Finds stop strings in a growing text, however it is split, and withholds text that may be the
// beginning of one. The match that completes first ends the text; of matches that complete with the
// same byte, the longest, so that no part of any stop string is sent. The text ends before the
// first byte of the match, or behind its last with AreInText.
class StopMatcher {
 public:
  explicit StopMatcher(std::shared_ptr<const StopStrings> strings);

  // Adds `text` and appends to `out` the part that can no longer belong to a stop string. Does
  // nothing after a match. Whole UTF-8 characters in give whole characters out, because the stop
  // strings are UTF-8 themselves.
  void Push(std::string_view text, std::string* out);

  // The text ended without a match: appends the withheld text.
  void Finish(std::string* out);

  // Index of the string that matched.
  std::optional<int> Match() const { return match_; }

 private:
  std::shared_ptr<const StopStrings> strings_;
  std::vector<int> num_matched_;  // per string
  std::string withheld_;          // the longest beginning of a stop string that ends the text
  std::optional<int> match_;
};

// The text of one sequence's output.
class Detokenizer {
 public:
  // `tokenizer` null: every text is empty. `stop_strings` null: nothing is matched.
  // `skips_special_tokens`: as of StreamDecoder.
  Detokenizer(const Tokenizer* tokenizer, std::shared_ptr<const StopStrings> stop_strings,
              bool skips_special_tokens = true);

  // Adds a token and appends to `out` the text that may be sent. `match` false: characters that
  // this token completes, or leaves incomplete at the end of the text, are not searched for stop
  // strings.
  void Push(int32_t id, bool match, std::string* out);

  // The text ended: an incomplete character becomes U+FFFD, and the withheld text is appended.
  void Finish(std::string* out);

  // The stop string that ended the text; null: none did.
  const std::string* StopString() const;

 private:
  void Append(std::string_view text, bool match, std::string* out);

  std::optional<StreamDecoder> decoder_;
  std::shared_ptr<const StopStrings> stop_strings_;
  std::optional<StopMatcher> matcher_;
  bool matches_last_ = true;  // `match` of the last token
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_DETOKENIZER_H_
