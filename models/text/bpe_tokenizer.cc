#include "models/text/bpe_tokenizer.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/added_tokens.h"

namespace lssar {
namespace {

// The tokens that are looked for in the text as it is, or in the normalized text.
absl::StatusOr<AddedTokens> TokensOf(const BpeVocabulary& vocabulary, bool is_normalized) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (const AddedToken& token : vocabulary.added_tokens) {
    if (token.is_normalized != is_normalized) continue;
    std::string content = token.content;
    if (is_normalized) {
      RETURN_IF_ERROR(NormalizeText(
          vocabulary.normalizer, [] { return false; }, &content));
    }
    if (!content.empty()) tokens.emplace_back(std::move(content), token.id);
  }
  return AddedTokens(tokens);
}

bool IsSpaceEscape(const NormalizerStep& step) {
  return step.kind == NormalizerStep::Kind::kReplace && step.from == " " && step.to == kSpaceSymbol;
}

bool IsPrepend(const NormalizerStep& step) { return step.kind == NormalizerStep::Kind::kPrepend; }

// True if the normalizer puts before a text what it makes of one space.
bool PrependsSpace(const std::vector<NormalizerStep>& steps) {
  if (std::ranges::count_if(steps, IsPrepend) != 1) return false;
  const auto prepend = std::ranges::find_if(steps, IsPrepend);
  if (prepend->to == kSpaceSymbol) return std::ranges::any_of(steps, IsSpaceEscape);
  return prepend->to == " " && std::any_of(prepend, steps.end(), IsSpaceEscape);
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(BpeVocabulary vocabulary, AddedTokens raw_tokens, AddedTokens normalized_tokens,
               PreTokenizer pre_tokenizer)
      : raw_tokens_(std::move(raw_tokens)),
        normalized_tokens_(std::move(normalized_tokens)),
        pieces_(std::move(vocabulary.pieces)),
        special_names_(SpecialNames(vocabulary.added_tokens)),
        hash_(std::move(vocabulary.hash)),
        normalizer_(std::move(vocabulary.normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        encoder_(std::move(vocabulary.model)),
        adds_dummy_prefix_(vocabulary.adds_dummy_prefix),
        token_before_text_(vocabulary.token_before_text),
        max_piece_bytes_(FindMaxPieceBytes()) {
    const bool prepends = std::ranges::any_of(normalizer_, IsPrepend);
    const bool is_local = std::ranges::all_of(normalizer_, [](const NormalizerStep& step) {
      return step.kind != NormalizerStep::Kind::kReplace || IsSpaceEscape(step);
    });
    prepends_space_ = PrependsSpace(normalizer_);
    can_split_ = pre_tokenizer_.SplitsAtSpaces() && is_local && prepends == prepends_space_ &&
                 !raw_tokens_.MayCoverSpace() && !normalized_tokens_.MayCoverSpace();
  }

  int VocabSize() const override { return int(pieces_.size()); }

  absl::StatusOr<std::vector<int32_t>> Encode(
      std::string_view text, absl::FunctionRef<bool()> should_stop) const override {
    RETURN_IF_ERROR(CheckTokenizerText(text, should_stop));
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 4 + 1);
    RETURN_IF_ERROR(raw_tokens_.Split(
        text, should_stop,
        [&](std::string_view part, bool begins_text) {
          return EncodePart(part, begins_text, should_stop, &ids);
        },
        &ids));
    return ids;
  }

  std::string_view PieceBytes(int32_t id) const override {
    LSSAR_CHECK(id >= 0 && id < VocabSize());
    return pieces_[size_t(id)];
  }
  std::string_view SpecialTokenName(int32_t id) const override {
    const auto found = special_names_.find(id);
    return found == special_names_.end() ? std::string_view() : found->second;
  }
  std::optional<int32_t> FindSpecialToken(std::string_view text) const override {
    for (const AddedTokens* tokens : {&raw_tokens_, &normalized_tokens_}) {
      const AddedTokens::Match match = tokens->FindAtStart(text);
      const bool is_whole = match.num_bytes > 0 && match.num_bytes == text.size();
      if (is_whole && pieces_[size_t(match.id)].empty()) return match.id;
    }
    return std::nullopt;
  }
  std::optional<int32_t> TokenBeforeText() const override { return token_before_text_; }
  bool AddsDummyPrefix() const override { return adds_dummy_prefix_; }
  std::string_view Hash() const override { return hash_; }
  int MaxPieceBytes() const override { return max_piece_bytes_; }

  StableSplit SplitStable(std::string_view text, size_t from) const override {
    const size_t cut = can_split_ ? LastSpaceInWords(text, from) : text.npos;
    if (cut == text.npos) return {.front = {}, .rest = text};
    return {.front = text.substr(0, cut), .rest = text.substr(prepends_space_ ? cut + 1 : cut)};
  }

 private:
  static std::map<int32_t, std::string> SpecialNames(const std::vector<AddedToken>& tokens) {
    std::map<int32_t, std::string> names;
    for (const AddedToken& token : tokens) {
      if (token.is_special) names.emplace(token.id, token.content);
    }
    return names;
  }

  int FindMaxPieceBytes() const {
    size_t most = std::max(raw_tokens_.MaxBytes(), normalized_tokens_.MaxBytes());
    for (const std::string& piece : pieces_) most = std::max(most, piece.size());
    return int(most);
  }

  absl::Status EncodePart(std::string_view part, bool begins_text,
                          absl::FunctionRef<bool()> should_stop, std::vector<int32_t>* ids) const {
    std::string normalized;
    if (!normalizer_.empty()) {
      normalized = part;
      RETURN_IF_ERROR(NormalizeText(normalizer_, should_stop, &normalized));
      part = normalized;
    }
    const auto on_word = [&](std::string_view word) {
      if (const int32_t id = encoder_.FindWord(word); id != kNoId) {
        ids->push_back(id);
        return true;
      }
      return encoder_.Encode(word, /*fuse_from=*/ids->size(), should_stop, ids);
    };
    return normalized_tokens_.Split(
        part, should_stop,
        [&](std::string_view words, bool is_first) {
          return pre_tokenizer_.Split(words, begins_text && is_first, should_stop, on_word);
        },
        ids);
  }

  const AddedTokens raw_tokens_, normalized_tokens_;
  const std::vector<std::string> pieces_;
  const std::map<int32_t, std::string> special_names_;
  const std::string hash_;
  const std::vector<NormalizerStep> normalizer_;
  const PreTokenizer pre_tokenizer_;
  const BpeEncoder encoder_;
  const bool adds_dummy_prefix_;
  const std::optional<int32_t> token_before_text_;
  const int max_piece_bytes_;
  bool prepends_space_ = false;  // the normalizer puts a space before a text
  bool can_split_ = false;       // as SplitStable
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(BpeVocabulary vocabulary) {
  ASSIGN_OR_RETURN(AddedTokens raw_tokens, TokensOf(vocabulary, /*is_normalized=*/false));
  ASSIGN_OR_RETURN(AddedTokens normalized_tokens, TokensOf(vocabulary, /*is_normalized=*/true));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(vocabulary.pre_tokenizer));
  return std::make_unique<BpeTokenizer>(std::move(vocabulary), std::move(raw_tokens),
                                        std::move(normalized_tokens), std::move(pre_tokenizer));
}

}  // namespace lssar
