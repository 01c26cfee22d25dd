// What stands beside the file of a tokenizer that does not hold all of it.
#ifndef LSSAR_MODELS_TEXT_TOKENS_BESIDE_H_
#define LSSAR_MODELS_TEXT_TOKENS_BESIDE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/json_fields.h"
#include "models/text/bpe_tokenizer.h"

namespace lssar {

struct TokensBeside {
  // added_tokens_decoder of tokenizer_config.json, and added_tokens.json; and its bos_token and so
  // on, which have no id there: kNoId.
  std::vector<AddedToken> tokens = {};
  // bos_token and so on, then additional_special_tokens, as transformers orders them.
  std::vector<std::string> special_tokens = {};
  // Where added_tokens_decoder is there, transformers reads it alone. Its tokens come first.
  bool has_decoder = false;
  size_t num_in_decoder = 0;
  // The rest is what tokenizer_config.json says; empty: nothing.
  std::string tokenizer_class = {};
  std::optional<bool> add_prefix_space = {};
  std::string tiktoken_pattern = {};
};

// Puts the bos_token and so on of special_tokens_map.json, and its further special tokens, into
// `config`, what tokenizer_config.json says. As in transformers, that file says nothing beside an
// added_tokens_decoder, and else comes first. null: there is none of the two files.
// Errors  INVALID_ARGUMENT: names the file and the field
absl::Status AddSpecialTokensMap(const std::string& directory, nlohmann::json* config);

// Files that are absent say nothing.
// Errors  INVALID_ARGUMENT: names the file and the field
absl::StatusOr<TokensBeside> ReadTokensBeside(const std::string& directory);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_TOKENS_BESIDE_H_
