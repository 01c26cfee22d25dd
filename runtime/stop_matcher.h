// Finds stop strings in a growing text, across any cuts, and holds back what may be one's
// beginning.
#ifndef LSSAR_RUNTIME_STOP_MATCHER_H_
#define LSSAR_RUNTIME_STOP_MATCHER_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lssar {

// Compiled once per request and shared by its choices; const.
class StopStrings {
 public:
  // Requires  no string is empty
  explicit StopStrings(std::vector<std::string> strings);

  int NumStrings() const { return int(strings_.size()); }
  const std::string& String(int i) const { return strings_[size_t(i)]; }

  // How many bytes of string i are matched once `byte` follows `num_matched` (< its length) of
  // them. Cost  amortised O(1) over a text (Knuth, Morris, Pratt)
  int Advance(int i, int num_matched, char byte) const;

 private:
  std::vector<std::string> strings_;
  // borders_[i][m]: length of the longest proper prefix of string i that ends its first m bytes.
  std::vector<std::vector<int>> borders_;
};

// The match that completes first ends the text; of those that complete with the same byte, the
// longest, so that nothing of any stop string is sent. The text ends before its first byte.
class StopMatcher {
 public:
  explicit StopMatcher(std::shared_ptr<const StopStrings> strings);

  // Adds `text` and appends to `out` what can no longer be part of a stop string. After a match
  // nothing more is taken or given. Text in whole UTF-8 characters comes out in whole characters,
  // as the strings are UTF-8 themselves.
  void Push(std::string_view text, std::string* out);

  // The text ended without a match: appends what was held back.
  void Finish(std::string* out);

  // Index of the string that matched.
  std::optional<int> Match() const { return match_; }

 private:
  std::shared_ptr<const StopStrings> strings_;
  std::vector<int> num_matched_;  // per string
  std::string held_;              // the longest beginning of a stop string that ends the text
  std::optional<int> match_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_STOP_MATCHER_H_
