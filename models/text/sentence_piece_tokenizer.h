// The SentencePiece tokenizer: unigram, BPE and character models.
#ifndef LSSAR_MODELS_TEXT_SENTENCE_PIECE_TOKENIZER_H_
#define LSSAR_MODELS_TEXT_SENTENCE_PIECE_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/text/tokenizer.h"

namespace lssar {

// The ids are those of the SentencePiece library. `vocab_size` may be larger than the number of
// pieces.
// Errors  NOT_FOUND: no such file; INVALID_ARGUMENT: not a SentencePiece model, more pieces than
//         vocab_size, or a feature that is not supported (ParseSentencePieceFile)
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(const std::string& path,
                                                                      int vocab_size);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_SENTENCE_PIECE_TOKENIZER_H_
