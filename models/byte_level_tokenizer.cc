#include "models/byte_level_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <string_view>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace lssar {
namespace {

// Added tokens: texts that are one token wherever they occur.
class AddedTokens {
 public:
  // (text, id) each; no text is empty.
  explicit AddedTokens(std::vector<std::pair<std::string, int32_t>> tokens)
      : tokens_(std::move(tokens)) {  // the longest first
    std::ranges::sort(tokens_, std::ranges::greater(),
                      [](const auto& t) { return t.first.size(); });
  }

  // Splits `text` at the tokens, in order. The texts between them are not empty. Where several
  // tokens start at the same byte the longest wins.
  // Cost  one search of the text per token
  void Split(std::string_view text, absl::FunctionRef<void(std::string_view)> on_text,
             absl::FunctionRef<void(int32_t)> on_id) const {
    // Where each token occurs next. Searching for all of them again after every match would be
    // quadratic in a text of many matches.
    std::vector<size_t> places(tokens_.size(), 0);
    for (size_t i = 0; i < tokens_.size(); ++i) places[i] = text.find(tokens_[i].first);
    for (size_t begin = 0; begin < text.size();) {
      const auto next = std::ranges::min_element(places);
      const size_t at = next == places.end() ? text.npos : *next;
      if (at > begin) on_text(text.substr(begin, at == text.npos ? at : at - begin));
      if (at == text.npos) return;
      const auto& [content, id] = tokens_[size_t(next - places.begin())];
      on_id(id);
      begin = at + content.size();
      for (size_t i = 0; i < tokens_.size(); ++i) {
        if (places[i] < begin) places[i] = text.find(tokens_[i].first, begin);
      }
    }
  }

  bool HasSpace() const {
    return std::ranges::any_of(
        tokens_, [](const auto& token) { return token.first.find(' ') != std::string::npos; });
  }
  size_t MaxBytes() const { return tokens_.empty() ? 0 : tokens_.front().first.size(); }

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;
};

// Unicode's White_Space; PCRE2's \s is not exactly that.
#define LSSAR_SPACES \
  R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"

// Every character is part of some match.
// Source  GPT-2's encoder.py, with its \s written out
constexpr char kWord[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" LSSAR_SPACES
    R"(]+|[)" LSSAR_SPACES R"(]+(?![^)" LSSAR_SPACES R"(])|[)" LSSAR_SPACES R"(]+)";

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

// GPT-2's pre-tokenizer: splits a text into words. Merges never cross a word's end.
class PreTokenizer {
 public:
  PreTokenizer() {
    int error = 0;
    PCRE2_SIZE at = 0;
    pattern_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kWord), PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                             &error, &at, nullptr);
    LSSAR_CHECK(pattern_ != nullptr);
    pcre2_jit_compile(pattern_, PCRE2_JIT_COMPLETE);  // without a JIT the interpreter runs
  }
  ~PreTokenizer() { pcre2_code_free(pattern_); }
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // Calls `on_word` with each word, in order; concatenated they are `text`.
  // Requires  UTF-8
  // Errors    INTERNAL: a limit of PCRE2 (no text is known that reaches one)
  //           CANCELLED: should_stop returned true
  absl::Status Split(std::string_view text, absl::FunctionRef<void(std::string_view)> on_word,
                     absl::FunctionRef<bool()> should_stop) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(pattern_, nullptr));
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    size_t polled_at = 0;
    for (size_t begin = 0; begin < text.size();) {
      if (begin >= polled_at) {
        if (should_stop()) return absl::CancelledError("the encoding was stopped");
        polled_at = begin + Tokenizer::kEncodePollBytes;
      }
      const int code = pcre2_match(pattern_, subject, text.size(), begin,
                                   PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (code < 0) {
        return absl::InternalError(
            StrCat("text cannot be split into words at byte ", begin, ": PCRE2 error ", code));
      }
      const size_t end = pcre2_get_ovector_pointer(match.get())[1];
      on_word(text.substr(begin, end - begin));
      begin = end;
    }
    return absl::OkStatus();
  }

 private:
  pcre2_code* pattern_ = nullptr;
};

// Byte pair encoding of one word.
class BytePairEncoder {
 public:
  // byte_ids: the ids of single bytes. merges: by rank, the first learnt first.
  BytePairEncoder(const std::array<int32_t, 256>& byte_ids, const std::vector<BpeMerge>& merges)
      : byte_ids_(byte_ids) {
    rules_.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const BpeMerge& merge = merges[rank];
      rules_.try_emplace(KeyOf(merge.left, merge.right),
                         Rule{.rank = int32_t(rank), .merged = merge.merged});
    }
  }

  // Appends the ids of `word`. Applies the merge of the lowest rank until none applies; among
  // equal ranks the leftmost first.
  // Cost  O(n log n): a word may be as long as a text
  void Encode(std::string_view word, std::vector<int32_t>* ids) const {
    const size_t none = word.size();
    std::vector<Symbol> symbols;
    symbols.reserve(word.size());
    for (size_t i = 0; i < word.size(); ++i) {
      symbols.push_back({byte_ids_[uint8_t(word[i])], i == 0 ? none : i - 1, i + 1});
    }

    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
    const auto consider = [&](size_t left) {
      if (left == none || symbols[left].next == none) return;
      const Rule* rule = Find(symbols[left].id, symbols[symbols[left].next].id);
      if (rule != nullptr) candidates.push({rule->rank, left});
    };
    for (size_t i = 0; i < symbols.size(); ++i) consider(i);
    while (!candidates.empty()) {
      const Candidate best = candidates.top();
      candidates.pop();
      Symbol& left = symbols[best.left];
      if (left.id == kMergedAway || left.next == none) continue;
      Symbol& right = symbols[left.next];
      const Rule* rule = Find(left.id, right.id);
      if (rule == nullptr || rule->rank != best.rank) continue;
      left.id = rule->merged;
      right.id = kMergedAway;
      left.next = right.next;
      if (left.next != none) symbols[left.next].previous = best.left;
      consider(left.previous);
      consider(best.left);
    }
    for (const Symbol& symbol : symbols) {
      if (symbol.id != kMergedAway) ids->push_back(symbol.id);
    }
  }

 private:
  static constexpr int32_t kMergedAway = -1;  // in place of an id: merged into the symbol before

  struct Symbol {
    int32_t id;
    size_t previous, next;  // word.size(): none
  };

  // A pair that may be merged, unless one of its symbols has changed since it was queued.
  struct Candidate {
    int32_t rank;
    size_t left;

    auto operator<=>(const Candidate&) const = default;
  };

  struct Rule {
    int32_t rank;
    int32_t merged;
  };

  static uint64_t KeyOf(int32_t left, int32_t right) {
    return uint64_t{uint32_t(left)} << 32 | uint32_t(right);
  }

  // nullptr: the two are never merged.
  const Rule* Find(int32_t left, int32_t right) const {
    const auto found = rules_.find(KeyOf(left, right));
    return found == rules_.end() ? nullptr : &found->second;
  }

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, Rule> rules_;
};

class ByteLevelTokenizer : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(ByteLevelVocabulary vocabulary)
      : pieces_(std::move(vocabulary.pieces)),
        hash_(std::move(vocabulary.hash)),
        encoder_(vocabulary.byte_ids, vocabulary.merges),
        added_tokens_(std::move(vocabulary.added_tokens)) {}

  int VocabSize() const override { return int(pieces_.size()); }

  absl::StatusOr<std::vector<int32_t>> Encode(
      std::string_view text, absl::FunctionRef<bool()> should_stop) const override {
    RETURN_IF_ERROR(CheckUtf8(text));
    std::vector<int32_t> ids;
    absl::Status status;
    added_tokens_.Split(
        text,
        [&](std::string_view part) {
          if (!status.ok()) return;
          status = pre_tokenizer_.Split(
              part, [&](std::string_view word) { encoder_.Encode(word, &ids); }, should_stop);
        },
        [&](int32_t id) { ids.push_back(id); });
    RETURN_IF_ERROR(status);
    return ids;
  }

  std::string_view PieceBytes(int32_t id) const override {
    LSSAR_CHECK(id >= 0 && id < VocabSize());
    return pieces_[size_t(id)];
  }
  bool AddsDummyPrefix() const override { return false; }
  std::string_view Hash() const override { return hash_; }
  int MaxPieceBytes() const override { return max_piece_bytes_; }

  // Between a letter and a space that a letter follows: a word ends there, and no pattern looks
  // back.
  StableSplit SplitStable(std::string_view text, size_t from) const override {
    const size_t cut = added_tokens_.HasSpace() ? text.npos : LastSpaceInWords(text, from);
    if (cut == text.npos) return {.front = {}, .rest = text};
    return {.front = text.substr(0, cut), .rest = text.substr(cut)};
  }

 private:
  int FindMaxPieceBytes() const {
    size_t most = added_tokens_.MaxBytes();
    for (const std::string& piece : pieces_) most = std::max(most, piece.size());
    return int(most);
  }

  const std::vector<std::string> pieces_;
  const std::string hash_;
  const PreTokenizer pre_tokenizer_;
  const BytePairEncoder encoder_;
  const AddedTokens added_tokens_;
  const int max_piece_bytes_ = FindMaxPieceBytes();
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteLevelTokenizer(ByteLevelVocabulary vocabulary) {
  return std::make_unique<ByteLevelTokenizer>(std::move(vocabulary));
}

}  // namespace lssar
