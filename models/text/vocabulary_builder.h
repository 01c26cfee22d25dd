// Collects a BPE vocabulary from any form of files. Internal to the readers of models/.
#ifndef LSSAR_MODELS_TEXT_VOCABULARY_BUILDER_H_
#define LSSAR_MODELS_TEXT_VOCABULARY_BUILDER_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "models/json_fields.h"
#include "models/text/bpe_tokenizer.h"

namespace lssar {

// GPT-2's files write each byte as one printable character: the byte itself where it is printable,
// else the next character from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet();

  // nullopt: the piece has a character outside the alphabet.
  std::optional<std::string> BytesOf(std::string_view piece) const;

 private:
  TextMap<char> bytes_;
};

// Every error is INVALID_ARGUMENT and starts with `source`, the path of a file.
class VocabularyBuilder {
 public:
  VocabularyBuilder(std::string source, int vocab_size, BpeModel::Alphabet alphabet);

  // Adds a piece as the file writes it. With kBytes, pieces outside of the byte alphabet have no
  // bytes: they may be special tokens.
  // Errors  an id out of range, used twice, or a piece that occurs twice
  absl::Status AddPiece(const std::string& name, int64_t id);
  // Adds a piece by its bytes (kBytes only).
  absl::Status AddBytes(const std::string& bytes, int64_t id);

  // Call these three after all pieces.
  // kBytes: finds the ids of the bytes. kCharacters: pieces of one character are symbols, and with
  // `has_byte_fallback` the pieces "<0x00>" to "<0xFF>" stand for bytes.
  void FindSymbols(bool has_byte_fallback = false);
  std::optional<int> FirstByteWithoutPiece() const;
  // Adds the next merge. `where` starts the errors of this one: "merges.txt: line 7".
  absl::Status AddMerge(std::string_view left, std::string_view right, std::string_view where);
  // Every two pieces whose bytes together are a piece merge to it; the lowest id first (tiktoken).
  void AddAllMerges();

  // Errors  an id out of range or of another piece, a piece with another id; a content that is
  //         empty, longer than 1 KiB or not UTF-8
  absl::Status AddToken(AddedToken token);
  // For files without a list of special tokens: they are the pieces that are neither a symbol nor
  // the result of a merge.
  absl::Status AddSpecialTokens();

  // One more than the largest id of a piece.
  int64_t NumIds() const;
  // The id of a piece as the file writes it; kNoId: there is none.
  int32_t IdOf(std::string_view name) const;
  // True if some merge joins a piece that ends in another character with one that starts with
  // U+2581.
  bool MergesAcrossSpaces() const { return merges_across_spaces_; }
  // Every piece with bytes is a word that needs no merges.
  void MakeAllPiecesWords();

  BpeVocabulary* Get() { return &vocabulary_; }
  BpeVocabulary Finish(std::string hash) &&;

 private:
  absl::Status Fault(std::string_view problem) const;
  absl::Status CheckId(std::string_view name, int64_t id) const;

  const ByteAlphabet alphabet_;
  std::string source_;
  std::vector<std::string> names_;  // by id, as the file writes them
  TextMap<int32_t> ids_;            // by name
  absl::flat_hash_set<std::pair<int32_t, int32_t>> merged_pairs_;
  bool merges_across_spaces_ = false;
  BpeVocabulary vocabulary_;
};

// Adds the pieces of `names`, an object of ids by piece. `path` starts its own errors.
absl::Status AddPieces(const nlohmann::json& names, const std::string& path,
                       VocabularyBuilder* builder);

// First 16 hex digits of the SHA-256 of the files, one after the other.
std::string HashOfFiles(std::initializer_list<std::string_view> files);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_VOCABULARY_BUILDER_H_
