// Wraps the SentencePiece library in std types: its header declares an absl::string_view of its
// own, so no file may include both it and Abseil.
#ifndef LSSAR_MODELS_SENTENCE_PIECE_H_
#define LSSAR_MODELS_SENTENCE_PIECE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lssar {

enum class PieceKind { kText, kControl, kByte, kUnknown };

// Const after Load and safe from any thread.
class SentencePieceModel {
 public:
  // `file`: the bytes of a tokenizer.model. Null if they are not one; `error` then says why.
  static std::unique_ptr<SentencePieceModel> Load(std::string_view file, std::string* error);
  ~SentencePieceModel();

  int NumPieces() const;
  PieceKind Kind(int id) const;
  const std::string& Piece(int id) const;

  // True for a unigram model, the only kind that has more than one way to encode a text.
  bool HasNBest() const;

  // Requires  UTF-8
  std::vector<int> Encode(std::string_view text) const;
  std::string Decode(const std::vector<int>& ids) const;

 private:
  struct Processor;
  explicit SentencePieceModel(std::unique_ptr<Processor> processor);
  std::unique_ptr<Processor> processor_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_SENTENCE_PIECE_H_
