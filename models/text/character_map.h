// SentencePiece's normalization rules ("precompiled_charsmap"): strings of characters and what
// replaces them.
#ifndef LSSAR_MODELS_TEXT_CHARACTER_MAP_H_
#define LSSAR_MODELS_TEXT_CHARACTER_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar {

// Const after Parse and safe from any thread.
class CharacterMap {
 public:
  // No rules.
  CharacterMap() = default;

  // `blob`: the size of a double array in bytes (32 bits, little endian), the array (darts-clone),
  // the replacements, each with a NUL behind it.
  // Ensures  Match stays in the array and in the replacements for every text
  // Errors   INVALID_ARGUMENT: an offset leaves the array or the replacements, a rule is longer
  //          than 64 bytes or endless, a replacement is not UTF-8 or longer than 256 bytes
  static absl::StatusOr<CharacterMap> Parse(std::string_view blob);

  struct Rule {
    size_t num_bytes = 0;  // of the text that is replaced; 0: no rule applies
    std::string_view replacement;
  };
  // The longest rule for the start of `text`.
  Rule Match(std::string_view text) const;

  // True if a rule may reach over a space between two ASCII letters.
  bool MayCoverSpace() const { return may_cover_space_; }

 private:
  // Checks all that is reachable from the root.
  absl::Status CheckArray();
  absl::Status CheckReplacements() const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  bool may_cover_space_ = false;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_CHARACTER_MAP_H_
