// The files of a GPT-2 vocabulary: pieces, merges and special tokens.
#ifndef LSSAR_MODELS_BYTE_LEVEL_VOCABULARY_H_
#define LSSAR_MODELS_BYTE_LEVEL_VOCABULARY_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/byte_pair_encoder.h"

namespace lssar {

struct ByteLevelVocabulary {
  struct Piece {
    std::string name;   // as the file spells it: "\u0120the"
    std::string bytes;  // " the"; empty of a special token
  };

  std::vector<Piece> pieces;  // by id, as many as the model has rows
  std::array<int32_t, 256> byte_ids{};
  std::vector<BytePairEncoder::Merge> merges;
  // Texts that are one token wherever they stand, and its id.
  std::vector<std::pair<std::string, int32_t>> added_tokens;
  std::string hash;  // first 16 hex digits of the SHA-256 of the files
};

// Reads `directory`/tokenizer.json (Hugging Face's form; its byte-level BPE alone), or else
// vocab.json and merges.txt, where pieces that no merge makes are the special tokens. A model may
// have more rows than there are pieces.
// Errors  NOT_FOUND: none of these files; INVALID_ARGUMENT: one is damaged, has ids past
// vocab_size,
//         or asks for what is not done here (names the field and what it must be)
absl::StatusOr<ByteLevelVocabulary> ReadByteLevelVocabulary(const std::string& directory,
                                                            int vocab_size);

}  // namespace lssar

#endif  // LSSAR_MODELS_BYTE_LEVEL_VOCABULARY_H_
