// The SentencePiece tokenizer: unigram, BPE and character models.
#ifndef LSSAR_MODELS_TEXT_SENTENCE_PIECE_TOKENIZER_H_
#define LSSAR_MODELS_TEXT_SENTENCE_PIECE_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/added_tokens.h"
#include "models/text/sentence_piece_file.h"
#include "models/text/tokenizer.h"

namespace lssar {

// The ids are those of the SentencePiece library. `vocab_size` may be larger than the number of
// pieces. `tokens` are found in a text before anything else, as Hugging Face's tokenizers do: what
// stands beside the file (GiveIds).
// Errors  NOT_FOUND: no such file; INVALID_ARGUMENT: not a SentencePiece model, more pieces than
//         vocab_size, a feature that is not supported (ParseSentencePieceFile); those of GiveIds
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(
    const std::string& path, int vocab_size, std::vector<AddedToken> tokens);

// Gives each token without an id (kNoId) that of its piece, or else the next one.
// Errors  INVALID_ARGUMENT: a token with an id beyond vocab_size or of another piece, or a piece
//         with another id; those of GiveIds (tokens_beside.h)
absl::Status GiveIds(const std::string& path, const SentencePieceFile& file, int vocab_size,
                     std::vector<AddedToken>* tokens);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_SENTENCE_PIECE_TOKENIZER_H_
