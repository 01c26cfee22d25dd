// SentencePiece's normalizer.
#ifndef LSSAR_MODELS_TEXT_SENTENCE_PIECE_NORMALIZER_H_
#define LSSAR_MODELS_TEXT_SENTENCE_PIECE_NORMALIZER_H_

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "models/text/added_tokens.h"
#include "models/text/sentence_piece_file.h"

namespace lssar {

// Replaces characters by the file's rules, but not within `symbols`; handles spaces as the file's
// flags say. A text that does not begin a text, but follows a special token, gets no dummy prefix
// and keeps its first space.
// Requires  UTF-8
// Ensures   `out` is UTF-8
// Errors    as NormalizeText
// Source    Normalizer::Normalize of SentencePiece 0.1.97
absl::Status NormalizeForSentencePiece(const SentencePieceFile& file, const AddedTokens& symbols,
                                       std::string_view text, bool begins_text,
                                       absl::FunctionRef<bool()> should_stop, std::string* out);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_SENTENCE_PIECE_NORMALIZER_H_
