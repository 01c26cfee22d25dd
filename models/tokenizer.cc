#include "models/tokenizer.h"

#include <utility>

#include "kernels/str_cat.h"
#include "models/byte_level_tokenizer.h"
#include "models/byte_level_vocabulary.h"
#include "models/sentence_piece_tokenizer.h"

namespace lssar {

absl::Status CheckUtf8(std::string_view text) {
  const std::optional<size_t> at = FindInvalidUtf8(text);
  if (!at) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("text is not UTF-8 from byte ", *at, " of ", text.size(),
                                           " on (value ", int(uint8_t(text[*at])), ")"));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory,
                                                         int vocab_size) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> sentence_piece =
      LoadSentencePieceTokenizer(directory + "/tokenizer.model", vocab_size);
  if (!absl::IsNotFound(sentence_piece.status())) return sentence_piece;
  absl::StatusOr<ByteLevelVocabulary> byte_level = ReadByteLevelVocabulary(directory, vocab_size);
  if (!byte_level.ok()) return byte_level.status();
  return MakeByteLevelTokenizer(*std::move(byte_level));
}

}  // namespace lssar
