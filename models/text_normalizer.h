// Changes a text before it is split into words: the normalizers of a tokenizer.json.
#ifndef LSSAR_MODELS_TEXT_NORMALIZER_H_
#define LSSAR_MODELS_TEXT_NORMALIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"

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

// Applies `steps` in order to `text`, in place. Returns false if should_stop did; `text` is then
// unspecified.
// Requires  UTF-8; no `from` is empty
// Cost      O(n log n), also for long runs of combining marks
// Source    Unicode Standard Annex 15 (utf8proc: Unicode 15)
bool NormalizeText(const std::vector<NormalizerStep>& steps, absl::FunctionRef<bool()> should_stop,
                   std::string* text);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_NORMALIZER_H_
