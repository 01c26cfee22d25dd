// Changes a text before it is split into words: the normalizers of a tokenizer.json.
#ifndef LSSAR_MODELS_TEXT_TEXT_NORMALIZER_H_
#define LSSAR_MODELS_TEXT_TEXT_NORMALIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace lssar {

struct NormalizerStep {
  enum class Kind : uint8_t {
    kNfc,  // Unicode normalization forms
    kNfd,
    kNfkc,
    kNfkd,
    kPrepend,  // puts `to` before a text that is not empty
    kReplace,  // replaces each `from` by `to`
  };
  Kind kind = Kind::kNfc;
  std::string from, to;
};

// The most that a normalizer may make of a text of `num_bytes`. NFKC and NFKD make up to 11 times
// its bytes; the rules of a hostile file, one after the other, any number.
constexpr size_t MaxNormalizedBytes(size_t num_bytes) { return 16 * num_bytes + 4096; }
absl::Status TooLongWhenNormalized(size_t num_bytes);

// Applies `steps` in order to `text`, in place.
// Requires  UTF-8; no `from` is empty; `from` and `to` have at most kMaxTokenBytes
// Errors    INVALID_ARGUMENT: the text becomes longer than MaxNormalizedBytes; CANCELLED:
//           should_stop returned true, which is asked every 4 KiB of each step. `text` is then
//           unspecified.
// Cost      O(n log n), also for long runs of combining marks; times the bytes of `from` where the
//           text repeats its beginning
// Source    Unicode Standard Annex 15 (utf8proc: Unicode 15)
absl::Status NormalizeText(const std::vector<NormalizerStep>& steps,
                           absl::FunctionRef<bool()> should_stop, std::string* text);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_TEXT_NORMALIZER_H_
