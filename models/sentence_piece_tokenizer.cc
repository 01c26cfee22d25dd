#include "models/sentence_piece_tokenizer.h"

#include <algorithm>
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
    can_split_ = adds_dummy_prefix_ && !model_->HasNBest() && HasNoSpaceInPieces();
    for (int id = 0; id < VocabSize(); ++id) {
      const size_t num_bytes = std::max(bytes_[size_t(id)].size(), model_->Piece(id).size());
      max_piece_bytes_ = std::max(max_piece_bytes_, int(num_bytes));
    }
  }

  int VocabSize() const override { return int(bytes_.size()); }

  // The library cannot be stopped, and its BPE takes some 150 bytes of memory for each byte of a
  // text: the text goes to it in parts. A part that has no place to split is encoded whole.
  absl::StatusOr<std::vector<int32_t>> Encode(
      std::string_view text, absl::FunctionRef<bool()> should_stop) const override {
    RETURN_IF_ERROR(CheckUtf8(text));
    std::vector<int32_t> ids;
    do {
      if (should_stop()) return absl::CancelledError("the encoding was stopped");
      const StableSplit split = FirstSplit(text);
      if (split.front.size() > kMaxPartBytes && !model_->HasNBest()) {
        return absl::InvalidArgumentError(
            StrCat("text has ", split.front.size(),
                   " bytes without a space between two letters; this tokenizer takes at most ",
                   kMaxPartBytes));
      }
      const std::vector<int> part = model_->Encode(split.front);
      ids.insert(ids.end(), part.begin(), part.end());
      text = split.rest;
    } while (!text.empty());
    return ids;
  }

  // At a space between two letters. The library's BPE never merges across it, as no piece has a
  // space behind another character; it adds the space again, as the dummy prefix of the rest.
  // The unigram model adds up scores of the whole text: their rounding may depend on the front.
  StableSplit SplitStable(std::string_view text, size_t from) const override {
    const size_t cut = can_split_ ? LastSpaceInWords(text, from) : text.npos;
    if (cut == text.npos) return {.front = {}, .rest = text};
    return {.front = text.substr(0, cut), .rest = text.substr(cut + 1)};
  }
  int MaxPieceBytes() const override { return max_piece_bytes_; }

  std::string_view PieceBytes(int32_t id) const override {
    LSSAR_CHECK(id >= 0 && id < VocabSize());
    return bytes_[size_t(id)];
  }

  bool AddsDummyPrefix() const override { return adds_dummy_prefix_; }
  std::string_view Hash() const override { return hash_; }

 private:
  static constexpr size_t kMaxPartBytes = size_t{1} << 20;

  // The first part to encode, of kEncodePollBytes or a little more where the text allows, and the
  // rest.
  StableSplit FirstSplit(std::string_view text) const {
    if (!can_split_) return {.front = text, .rest = {}};
    for (size_t size = kEncodePollBytes; size < text.size(); size += kEncodePollBytes) {
      const std::string_view part = text.substr(0, size);
      const StableSplit split = SplitStable(part, size - kEncodePollBytes);
      if (!split.front.empty()) {
        return {.front = split.front, .rest = text.substr(split.front.size() + 1)};
      }
    }
    return {.front = text, .rest = {}};
  }

  // True if no piece has a space behind another character.
  bool HasNoSpaceInPieces() const {
    for (int id = 0; id < VocabSize(); ++id) {
      if (model_->Kind(id) != PieceKind::kText) continue;
      const std::string& bytes = bytes_[size_t(id)];
      const size_t last = bytes.rfind(' ');
      if (last != std::string::npos && bytes.find_first_not_of(' ') < last) return false;
    }
    return true;
  }

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
  bool can_split_ = false;
  int max_piece_bytes_ = 0;
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
