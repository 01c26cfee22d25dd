#include "models/sentence_piece.h"

#include <sentencepiece_processor.h>

#include <utility>

#include "kernels/check.h"

namespace lssar {

struct SentencePieceModel::Processor {
  sentencepiece::SentencePieceProcessor library;
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Processor> processor)
    : processor_(std::move(processor)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(std::string_view file,
                                                             std::string* error) {
  auto processor = std::make_unique<Processor>();
  const sentencepiece::util::Status status = processor->library.LoadFromSerializedProto(file);
  if (!status.ok() || processor->library.GetPieceSize() == 0) {
    *error = status.ok() ? "it has no pieces" : status.ToString();
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(std::move(processor)));
}

int SentencePieceModel::NumPieces() const { return processor_->library.GetPieceSize(); }

PieceKind SentencePieceModel::Kind(int id) const {
  if (processor_->library.IsControl(id)) return PieceKind::kControl;
  if (processor_->library.IsByte(id)) return PieceKind::kByte;
  if (processor_->library.IsUnknown(id)) return PieceKind::kUnknown;
  return PieceKind::kText;
}

const std::string& SentencePieceModel::Piece(int id) const {
  return processor_->library.IdToPiece(id);
}

bool SentencePieceModel::HasNBest() const {
  // The library does not say what kind a model is, but refuses the n best of all others.
  std::vector<std::vector<int>> best;
  return processor_->library.NBestEncode("a", 2, &best).ok();
}

// Encode and Decode of a loaded model and UTF-8 text do not fail.
std::vector<int> SentencePieceModel::Encode(std::string_view text) const {
  std::vector<int> ids;
  LSSAR_CHECK(processor_->library.Encode(text, &ids).ok());
  return ids;
}

std::string SentencePieceModel::Decode(const std::vector<int>& ids) const {
  std::string text;
  LSSAR_CHECK(processor_->library.Decode(ids, &text).ok());
  return text;
}

}  // namespace lssar
