#include "models/sentence_piece_tokenizer.h"

#include <charconv>
#include <utility>

#include "absl/strings/str_replace.h"
#include "kernels/check.h"
#include "kernels/read_file.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "models/sentence_piece.h"
#include "models/sha256.h"

namespace lssar {
namespace {

constexpr char kSpaceSymbol[] = "\xE2\x96\x81";  // U+2581

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model, std::string hash)
      : model_(std::move(model)), hash_(std::move(hash)) {
    for (int id = 0; id < model_->NumPieces(); ++id) bytes_.push_back(FindBytes(id));
    adds_dummy_prefix_ = FindDummyPrefix();
  }

  int VocabSize() const override { return int(bytes_.size()); }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override {
    RETURN_IF_ERROR(CheckUtf8(text));
    return model_->Encode(text);
  }

  std::string_view PieceBytes(int32_t id) const override {
    LSSAR_CHECK(id >= 0 && id < VocabSize());
    return bytes_[size_t(id)];
  }

  bool AddsDummyPrefix() const override { return adds_dummy_prefix_; }
  std::string_view Hash() const override { return hash_; }

 private:
  std::string FindBytes(int id) const {
    switch (model_->Kind(id)) {
      case PieceKind::kControl: return "";
      case PieceKind::kByte: return std::string(1, ByteOf(model_->Piece(id)));
      case PieceKind::kUnknown: return model_->Decode({id});
      case PieceKind::kText: break;
    }
    return absl::StrReplaceAll(model_->Piece(id), {{kSpaceSymbol, " "}});
  }

  // The byte of a piece "<0x0A>".
  static char ByteOf(const std::string& piece) {
    uint8_t byte = 0;
    LSSAR_CHECK(piece.size() == 6);
    const char* const end = piece.data() + 5;
    LSSAR_CHECK(std::from_chars(piece.data() + 3, end, byte, 16).ptr == end);
    return char(byte);
  }

  // The library does not expose the model file's add_dummy_prefix, but its decoder shows it: with a
  // dummy prefix, Decode removes the leading space of the first piece.
  bool FindDummyPrefix() const {
    for (int id = 0; id < VocabSize(); ++id) {
      const std::string& bytes = bytes_[size_t(id)];
      if (model_->Kind(id) == PieceKind::kText && bytes.size() > 1 && bytes.front() == ' ') {
        return model_->Decode({id}) == bytes.substr(1);
      }
    }
    return false;
  }

  std::unique_ptr<SentencePieceModel> model_;
  std::string hash_;
  std::vector<std::string> bytes_;  // by id
  bool adds_dummy_prefix_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(const std::string& path,
                                                                      int vocab_size) {
  ASSIGN_OR_RETURN(const std::string file, ReadWholeFile(path));
  std::string error;
  std::unique_ptr<SentencePieceModel> model = SentencePieceModel::Load(file, &error);
  if (model == nullptr) {
    return absl::InvalidArgumentError(StrCat(path, ": not a SentencePiece model: ", error));
  }
  if (model->NumPieces() != vocab_size) {
    return absl::InvalidArgumentError(StrCat(path, ": has ", model->NumPieces(),
                                             " pieces, must have as many as config.json's "
                                             "vocab_size, ",
                                             vocab_size));
  }
  Sha256 hash;
  hash.Add(file);
  return std::make_unique<SentencePieceTokenizer>(std::move(model), hash.ShortHex());
}

}  // namespace lssar
