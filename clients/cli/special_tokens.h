// Hides special tokens such as <|user|> in generated text.
#ifndef LSSAR_CLIENTS_CLI_SPECIAL_TOKENS_H_
#define LSSAR_CLIENTS_CLI_SPECIAL_TOKENS_H_

#include <google/protobuf/repeated_ptr_field.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

// True for a piece of the form <|name|>. Control tokens such as EOS have an empty piece and never
// show.
bool IsSpecialPiece(absl::string_view piece);

// Removes the special tokens from the text of one choice, delta by delta. Only the pieces of tokens
// that were generated are removed, so that other text of that form stays.
class SpecialTokenFilter {
 public:
  // The text that can be shown now. What may be the beginning of a special token is held back: a
  // server that looks for stop strings may send a token's text in parts.
  std::string Push(const v1::Delta& delta);

  // The text that was held back.
  std::string Finish();

 private:
  std::set<std::string> pieces_;  // of the special tokens so far
  std::string pending_;
};

// The whole text of a choice without its special tokens.
std::string WithoutSpecialTokens(const std::string& text, const std::vector<v1::Token>& tokens);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SPECIAL_TOKENS_H_
