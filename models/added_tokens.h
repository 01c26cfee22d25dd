// Texts that are one token wherever they stand: "<|endoftext|>", "<|user|>".
#ifndef LSSAR_MODELS_ADDED_TOKENS_H_
#define LSSAR_MODELS_ADDED_TOKENS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lssar {

// Const after construction and safe from any thread.
class AddedTokens {
 public:
  // (content, id) each; no content is empty.
  explicit AddedTokens(std::vector<std::pair<std::string, int32_t>> tokens);

  // Cuts `text` at the tokens, in order; none of the texts between is empty. Of tokens that start
  // at the same place the longest is taken. Cost  one search of the text a token
  void Split(std::string_view text, absl::FunctionRef<void(std::string_view)> take_text,
             absl::FunctionRef<void(int32_t)> take_id) const;

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;  // the longest first
};

}  // namespace lssar

#endif  // LSSAR_MODELS_ADDED_TOKENS_H_
