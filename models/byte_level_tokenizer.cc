#include "models/byte_level_tokenizer.h"

#include <utility>

#include "kernels/check.h"
#include "models/added_tokens.h"
#include "models/byte_pair_encoder.h"
#include "models/pre_tokenizer.h"

namespace lssar {
namespace {

class ByteLevelTokenizer : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(ByteLevelVocabulary vocabulary)
      : pieces_(std::move(vocabulary.pieces)),
        hash_(std::move(vocabulary.hash)),
        encoder_(vocabulary.byte_ids, vocabulary.merges),
        added_tokens_(std::move(vocabulary.added_tokens)) {}

  int VocabSize() const override { return int(pieces_.size()); }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override {
    if (absl::Status status = CheckUtf8(text); !status.ok()) return status;
    std::vector<int32_t> ids;
    absl::Status status;
    added_tokens_.Split(
        text,
        [&](std::string_view running_text) {
          status.Update(words_.Split(running_text,
                                     [&](std::string_view word) { encoder_.Encode(word, &ids); }));
        },
        [&](int32_t id) { ids.push_back(id); });
    if (!status.ok()) return status;
    return ids;
  }

  std::string_view PieceBytes(int32_t id) const override { return At(id).bytes; }
  std::string_view PieceName(int32_t id) const override { return At(id).name; }
  bool AddsDummyPrefix() const override { return false; }
  std::string_view Hash() const override { return hash_; }

 private:
  const ByteLevelVocabulary::Piece& At(int32_t id) const {
    LSSAR_CHECK(id >= 0 && id < VocabSize());
    return pieces_[size_t(id)];
  }

  const std::vector<ByteLevelVocabulary::Piece> pieces_;
  const std::string hash_;
  const PreTokenizer words_;
  const BytePairEncoder encoder_;
  const AddedTokens added_tokens_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteLevelTokenizer(ByteLevelVocabulary vocabulary) {
  return std::make_unique<ByteLevelTokenizer>(std::move(vocabulary));
}

}  // namespace lssar
