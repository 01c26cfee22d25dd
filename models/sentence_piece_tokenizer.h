// The SentencePiece tokenizer.
#ifndef LSSAR_MODELS_SENTENCE_PIECE_TOKENIZER_H_
#define LSSAR_MODELS_SENTENCE_PIECE_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/tokenizer.h"

namespace lssar {

// Errors  NOT_FOUND: no such file; INVALID_ARGUMENT: not a SentencePiece model, or its number of
//         pieces is not vocab_size (names both)
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(const std::string& path,
                                                                      int vocab_size);

}  // namespace lssar

#endif  // LSSAR_MODELS_SENTENCE_PIECE_TOKENIZER_H_
