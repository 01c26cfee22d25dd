// Reads a SentencePiece model file (tokenizer.model): a checked reader of its own, because the
// library follows offsets of the file without a check.
#ifndef LSSAR_MODELS_TEXT_SENTENCE_PIECE_FILE_H_
#define LSSAR_MODELS_TEXT_SENTENCE_PIECE_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/character_map.h"

namespace lssar {

// The values of sentencepiece_model.proto that change an encoding or a decoding.
struct SentencePieceFile {
  enum class ModelType : uint8_t { kUnigram = 1, kBpe = 2, kChar = 4 };
  enum class PieceType : uint8_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
    uint8_t byte = 0;  // kByte only

    bool IsText() const {
      return type == PieceType::kNormal || type == PieceType::kUserDefined ||
             type == PieceType::kUnused;
    }
  };

  std::vector<Piece> pieces;  // by id
  int32_t unknown_id = 0;
  ModelType model_type = ModelType::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string unk_surface = " \xE2\x81\x87 ";
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  CharacterMap character_map;
};

// `path` starts the errors.
// Ensures  texts of pieces are UTF-8, not empty, at most 1 KiB, each once; scores are finite; there
//          is one unknown piece; with byte_fallback there are 256 byte pieces
// Errors   INVALID_ARGUMENT: not a well-formed file (names the byte), a field twice, a value out of
//          its range, more than `max_pieces` pieces, or a feature that changes ids and is not
//          supported (WORD models, a denormalizer, unused pieces in a BPE model)
absl::StatusOr<SentencePieceFile> ParseSentencePieceFile(std::string_view bytes,
                                                         const std::string& path, int max_pieces);

// The bytes of a file that ParseSentencePieceFile has accepted, without self_test_data: the library
// would encode it at load, in quadratic time, and says nothing of the result but whether it fits.
std::string WithoutSelfTest(std::string_view bytes);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_SENTENCE_PIECE_FILE_H_
