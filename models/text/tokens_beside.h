// What stands beside the file of a tokenizer that does not hold all of it.
#ifndef LSSAR_MODELS_TEXT_TOKENS_BESIDE_H_
#define LSSAR_MODELS_TEXT_TOKENS_BESIDE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/json_fields.h"
#include "models/text/bpe_tokenizer.h"

namespace lssar {

struct TokensBeside {
  // Those of added_tokens_decoder of tokenizer_config.json by id, then those of added_tokens.json
  // by id. Then, without an id (kNoId), the others of bos_token and so on and of
  // additional_special_tokens: transformers gives ids in this order.
  std::vector<AddedToken> tokens = {};
  // Where added_tokens_decoder is there, transformers does not read added_tokens.json.
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

// The error of a token that `path` lacks and that transformers would add as token `id`.
absl::Status CannotAddToken(std::string_view path, std::string_view content, int64_t id,
                            std::string_view problem);

// Gives each token without an id that of its piece, or else the next one, as transformers does.
// `path`: the vocabulary, of `num_pieces` pieces whose ids are below `num_ids`.
// `id_of`: the id of a piece, or kNoId
// Errors  INVALID_ARGUMENT: an id is not below vocab_size, or it is not known which one is next
absl::Status GiveIds(std::string_view path, int64_t num_pieces, int64_t num_ids, int vocab_size,
                     absl::FunctionRef<int32_t(std::string_view)> id_of,
                     std::vector<AddedToken>* tokens);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_TOKENS_BESIDE_H_
