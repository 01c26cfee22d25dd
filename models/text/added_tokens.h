// Added tokens: texts that are one token wherever they occur ("<|endoftext|>").
#ifndef LSSAR_MODELS_TEXT_ADDED_TOKENS_H_
#define LSSAR_MODELS_TEXT_ADDED_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "models/text/byte_trie.h"

namespace lssar {

// The most bytes of a token, and of any other text of a checkpoint that is looked for in texts.
inline constexpr size_t kMaxTokenBytes = 1024;

// A text that is one token wherever it occurs ("<|endoftext|>").
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool is_special = true;      // has no bytes in a decoded text
  bool is_normalized = false;  // is looked for behind the normalizer, not before
};

// Finds added tokens in a text. Const after construction and safe from any thread.
class AddedTokens {
 public:
  // (text, id) each; no text is empty. The first of several with one text counts.
  explicit AddedTokens(const std::vector<std::pair<std::string, int32_t>>& tokens);

  struct Match {
    size_t begin = std::string_view::npos;  // npos: there is none
    size_t num_bytes = 0;
    int32_t id = 0;
  };

  // The first token of `text` that begins at or after byte `from` and before byte `until`. Where
  // several begin at the same byte the longest wins.
  // Cost  O(until - from), and the length of the longest token for each byte that may begin one
  Match FindNext(std::string_view text, size_t from, size_t until) const;

  // Appends the id of each token in `text` to `ids`, and calls `on_part` with the texts between
  // them, which are not empty, and whether the part begins the text.
  // Errors  CANCELLED: should_stop returned true, which is asked every 64 KiB; those of on_part
  absl::Status Split(std::string_view text, absl::FunctionRef<bool()> should_stop,
                     absl::FunctionRef<absl::Status(std::string_view, bool)> on_part,
                     std::vector<int32_t>* ids) const;

  // The longest token that `text` starts with; num_bytes 0: there is none.
  Match FindAtStart(std::string_view text) const {
    const auto [num_bytes, id] = trie_.FindLongest(text);
    return {.begin = 0, .num_bytes = num_bytes, .id = id};
  }

  bool IsEmpty() const { return trie_.IsEmpty(); }
  size_t MaxBytes() const { return max_bytes_; }
  // True if a token may begin at, or stretch over, a space between two ASCII letters.
  bool MayCoverSpace() const { return may_cover_space_; }

 private:
  ByteTrie trie_;
  size_t max_bytes_ = 0;
  bool may_cover_space_ = false;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_ADDED_TOKENS_H_
