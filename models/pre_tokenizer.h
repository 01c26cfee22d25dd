// GPT-2's cut of a text into words: merges of its byte-level BPE never cross their borders.
#ifndef LSSAR_MODELS_PRE_TOKENIZER_H_
#define LSSAR_MODELS_PRE_TOKENIZER_H_

#include <memory>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace lssar {

// Const after construction and safe from any thread.
class PreTokenizer {
 public:
  PreTokenizer();
  ~PreTokenizer();

  // Calls `take` with each word, in order; side by side they are `text`.
  // Requires  UTF-8
  // Errors    INTERNAL: the library's own limits (no text is known that meets them)
  absl::Status Split(std::string_view text, absl::FunctionRef<void(std::string_view)> take) const;

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_PRE_TOKENIZER_H_
