// Splits a text into words, which merges never cross.
#ifndef LSSAR_MODELS_TEXT_PRE_TOKENIZER_H_
#define LSSAR_MODELS_TEXT_PRE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar {

// U+2581, which stands for a space in SentencePiece's pieces.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

// Patterns of known tokenizers, as tokenizer.json writes them.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// cl100k_base, and Llama 3's.
inline constexpr std::string_view kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreTokenizerStep {
  enum class Kind : uint8_t {
    kPattern,       // each match of `pattern` is a word, and each text between two matches
    kDigitRuns,     // each run of characters of category N is a word
    kSingleDigits,  // each such character is one
    kAddSpace,      // puts " " before a word that does not start with one
    // SentencePiece's escapes (Hugging Face's Metaspace).
    kEscapeSpaces,       // " " becomes U+2581
    kPrefixText,         // puts U+2581 before the first word of a text, unless it starts with one
    kPrefixAll,          // before every word that does not start with one
    kSplitBeforeSpace,   // a word begins at every U+2581
    kSplitBeforeSpaces,  // a word begins at every run of U+2581
  };
  Kind kind = Kind::kPattern;
  std::string pattern = {};  // a regular expression in the syntax of kGpt2Pattern
};

// Const after creation and safe from any thread.
class PreTokenizer {
 public:
  // No steps: a text is one word.
  // Errors  INVALID_ARGUMENT: a pattern uses syntax outside the subset (the message names it), or
  //         may match nothing. In the subset are characters, \s \S \d \r \n \t, \p and \P with a
  //         general category, escaped punctuation, classes, groups, lookahead and repeats.
  static absl::StatusOr<PreTokenizer> Create(std::vector<PreTokenizerStep> steps);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Calls `on_word` with each word, in order, until it returns false. `begins_text`: nothing of the
  // request's text is before `text`.
  // Requires  UTF-8
  // Errors    INVALID_ARGUMENT: a pattern takes more than some thousand steps a byte, or a limit of
  //           PCRE2, which of the known patterns' words only a run of some 10 million spaces or
  //           capitals reaches; CANCELLED: should_stop returned true, which is asked every 4 KiB
  //           and, of other patterns, every 256 steps of a match, or on_word false
  absl::Status Split(std::string_view text, bool begins_text, absl::FunctionRef<bool()> should_stop,
                     absl::FunctionRef<bool(std::string_view)> on_word) const;

  // True if a word ends between an ASCII letter and a space that such a letter follows, and the
  // words on either side do not depend on the other side.
  bool SplitsAtSpaces() const;

 private:
  class Splitter;
  explicit PreTokenizer(std::vector<std::unique_ptr<Splitter>> splitters);
  absl::Status SplitFrom(size_t splitter, std::string_view text, bool begins_text,
                         absl::FunctionRef<bool()> should_stop,
                         absl::FunctionRef<bool(std::string_view)> on_word) const;

  std::vector<std::unique_ptr<Splitter>> splitters_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_PRE_TOKENIZER_H_
