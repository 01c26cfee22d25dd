// Byte pair encoding of words: symbols, merge rules, ids.
#ifndef LSSAR_MODELS_TEXT_BPE_H_
#define LSSAR_MODELS_TEXT_BPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace lssar {

inline constexpr int32_t kNoId = -1;

// Hash and equality of text keys that are looked up by view. Debian's Abseil does not take
// std::string_view for std::string.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
struct TextEqual {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const { return a == b; }
};
template <typename Value>
using TextMap = absl::flat_hash_map<std::string, Value, TextHash, TextEqual>;

// `left` followed by `right` becomes `merged`; all are ids. The lowest rank merges first; several
// merges may have one rank.
struct BpeMerge {
  int32_t left, right;
  int32_t merged;
  int32_t rank;
};

// A vocabulary as the algorithm sees it.
struct BpeModel {
  enum class Alphabet : uint8_t {
    kBytes,       // a word starts as its bytes (GPT-2)
    kCharacters,  // a word starts as its UTF-8 characters (SentencePiece)
  };
  Alphabet alphabet = Alphabet::kBytes;
  // kBytes: the id of each byte. kCharacters: the id of each byte of a character that is not in
  // `characters`. kNoId: the byte has no piece, so it, or its character, is unknown.
  std::array<int32_t, 256> byte_ids = AllBytes(kNoId);
  TextMap<int32_t> characters;  // kCharacters only
  int32_t unknown_id = kNoId;   // of an unknown byte or character; kNoId: it is dropped
  bool fuse_unknown = false;    // a run of unknown characters of a word is one id
  std::vector<BpeMerge> merges;
  // Words with one id that no merges are applied to.
  TextMap<int32_t> words;
  // The bytes of ids, for words that are one piece: BpeEncoder adds to `words` each piece that the
  // merges make of its own text. Empty: none.
  std::vector<std::string> pieces;

  static constexpr std::array<int32_t, 256> AllBytes(int32_t id) {
    std::array<int32_t, 256> ids{};
    ids.fill(id);
    return ids;
  }
};

// Const after construction and safe from any thread.
class BpeEncoder {
 public:
  explicit BpeEncoder(BpeModel model);

  // Appends the ids of `word`. Applies the merge of the lowest rank until none applies; among equal
  // ranks the leftmost first. An unknown symbol joins the one before it, if they are fused, from
  // ids[fuse_from] on. Returns false if should_stop did, with some of the ids appended.
  // Requires  UTF-8, if the alphabet is kCharacters
  // Cost      O(n log n): a word may be as long as a text
  bool Encode(std::string_view word, size_t fuse_from, absl::FunctionRef<bool()> should_stop,
              std::vector<int32_t>* ids) const;

  // The id of a word that needs no merges; kNoId: none is known.
  int32_t FindWord(std::string_view word) const {
    if (word.size() > max_word_bytes_) return kNoId;
    const auto found = words_.find(word);
    return found == words_.end() ? kNoId : found->second;
  }

 private:
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

  void AddWords(const std::vector<std::string>& pieces);
  void AppendSymbols(std::string_view word, size_t fuse_from, std::vector<int32_t>* symbols) const;
  size_t MergeShort(std::span<int32_t> symbols) const;
  size_t MergeLong(std::span<int32_t> symbols, absl::FunctionRef<bool()> should_stop) const;

  BpeModel::Alphabet alphabet_;
  std::array<int32_t, 256> byte_ids_;
  TextMap<int32_t> characters_;
  int32_t unknown_id_;
  bool fuse_unknown_;
  absl::flat_hash_map<uint64_t, Rule> rules_;
  TextMap<int32_t> words_;
  size_t max_word_bytes_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_BPE_H_
