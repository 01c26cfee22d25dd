#include "models/text/sentence_piece_tokenizer.h"

#include <algorithm>
#include <cfloat>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/read_file.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/added_tokens.h"
#include "models/text/bpe.h"
#include "models/text/byte_trie.h"
#include "models/text/pre_tokenizer.h"
#include "models/text/sentence_piece_file.h"
#include "models/text/sentence_piece_normalizer.h"

namespace lssar {
namespace {

using ModelType = SentencePieceFile::ModelType;
using Piece = SentencePieceFile::Piece;
using PieceType = SentencePieceFile::PieceType;

absl::Status Stopped() { return absl::CancelledError("the encoding was stopped"); }

AddedTokens UserDefinedSymbols(const SentencePieceFile& file) {
  std::vector<std::pair<std::string, int32_t>> symbols;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type != PieceType::kUserDefined) continue;
    symbols.emplace_back(file.pieces[id].text, int32_t(id));
  }
  return AddedTokens(symbols);
}

std::array<int32_t, 256> ByteIds(const SentencePieceFile& file) {
  std::array<int32_t, 256> ids = BpeModel::AllBytes(kNoId);
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type == PieceType::kByte) ids[file.pieces[id].byte] = int32_t(id);
  }
  return ids;
}

// The unigram language model: the segmentation with the highest sum of scores.
// Source  unigram::Model::EncodeOptimized of SentencePiece 0.1.97; sums are rounded as there, so
//         that ties fall the same way
class UnigramEncoder {
 public:
  explicit UnigramEncoder(const SentencePieceFile& file)
      : pieces_(file.pieces),
        unknown_id_(file.unknown_id),
        byte_ids_(ByteIds(file)),
        trie_(Keys(file)) {
    float min_score = FLT_MAX;
    for (const Piece& piece : pieces_) {
      if (piece.type != PieceType::kNormal) continue;
      min_score = std::min(min_score, piece.score);
      max_score_ = std::max(max_score_, piece.score);
    }
    unknown_score_ = min_score - kUnknownPenalty;
  }

  // Appends the ids of `text`. Returns false if should_stop did.
  bool Encode(std::string_view text, absl::FunctionRef<bool()> should_stop,
              std::vector<int32_t>* ids) const {
    // The last piece of the best path to each byte.
    struct Node {
      int32_t id = kNoId;
      float score = 0;  // of the path
      int64_t begin = -1;
    };
    std::vector<Node> nodes(text.size() + 1);
    for (size_t begin = 0, polled_at = 0; begin < text.size();) {
      if (begin >= polled_at) {
        if (should_stop()) return false;
        polled_at = begin + Tokenizer::kEncodePollBytes;
      }
      const float score_here = nodes[begin].score;
      const auto consider = [&](size_t num_bytes, int32_t id, auto score) {
        Node& node = nodes[begin + num_bytes];
        const auto path_score = score + score_here;
        if (node.begin != -1 && !(path_score > node.score)) return;
        node = {.id = id, .score = float(path_score), .begin = int64_t(begin)};
      };
      const size_t character = NextUtf8(text.substr(begin)).num_bytes;
      bool has_character = false;
      trie_.ForEachPrefix(text.substr(begin), [&](size_t num_bytes, int32_t id) {
        const Piece& piece = pieces_[size_t(id)];
        const double score = piece.type == PieceType::kUserDefined
                                 ? double(float(num_bytes) * max_score_) - 0.1
                                 : double(piece.score);
        consider(num_bytes, id, score);
        has_character = has_character || num_bytes == character;
      });
      if (!has_character) consider(character, unknown_id_, unknown_score_);
      begin += character;
    }
    const size_t first = ids->size();
    for (size_t end = text.size(); end > 0; end = size_t(nodes[end].begin)) {
      const Node& node = nodes[end];
      if (node.id != unknown_id_) {
        ids->push_back(node.id);
      } else if (byte_ids_[0] != kNoId) {
        for (size_t i = end; i-- > size_t(node.begin);) {
          ids->push_back(byte_ids_[uint8_t(text[i])]);
        }
      } else if (ids->size() == first || ids->back() != unknown_id_) {
        ids->push_back(unknown_id_);  // a run of unknown characters is one id
      }
    }
    std::reverse(ids->begin() + ptrdiff_t(first), ids->end());
    return true;
  }

 private:
  static constexpr float kUnknownPenalty = 10;

  static std::vector<std::pair<std::string, int32_t>> Keys(const SentencePieceFile& file) {
    std::vector<std::pair<std::string, int32_t>> keys;
    for (size_t id = 0; id < file.pieces.size(); ++id) {
      const Piece& piece = file.pieces[id];
      if (piece.IsText() && piece.type != PieceType::kUnused) {
        keys.emplace_back(piece.text, int32_t(id));
      }
    }
    return keys;
  }

  const std::vector<Piece>& pieces_;
  const int32_t unknown_id_;
  const std::array<int32_t, 256> byte_ids_;
  const ByteTrie trie_;
  float max_score_ = FLT_MIN;  // as in the library, although it is positive
  float unknown_score_ = 0;
};

// Characters, and for a BPE model merges of two symbols to each piece: the highest score first.
class MergingEncoder {
 public:
  MergingEncoder(const SentencePieceFile& file, const AddedTokens* symbols)
      : num_pieces_(int32_t(file.pieces.size())),
        unknown_id_(file.unknown_id),
        byte_ids_(ByteIds(file)),
        symbols_(symbols),
        encoder_(MakeModel(file)) {}

  // True if a word's ids do not depend on what is before its U+2581: no piece has U+2581 behind
  // another character, and U+2581 is a piece, so that no run of unknown characters includes it.
  bool WordsAreIndependent() const { return words_begin_at_spaces_ && has_space_; }

  // As UnigramEncoder::Encode.
  bool Encode(std::string_view text, absl::FunctionRef<bool()> should_stop,
              std::vector<int32_t>* ids) const {
    const size_t first = ids->size();
    size_t word = 0, polled_at = 0;  // where the word that `at` is in begins
    const auto end_word = [&](size_t end) {
      const std::string_view bytes = text.substr(word, end - word);
      word = end;
      if (bytes.empty()) return true;
      if (const int32_t id = encoder_.FindWord(bytes); id != kNoId) {
        ids->push_back(id);
        return true;
      }
      return encoder_.Encode(bytes, first, should_stop, ids);
    };
    bool follows_space = true;
    for (size_t at = 0; at < text.size();) {
      if (at >= polled_at) {
        if (should_stop()) return false;
        polled_at = at + Tokenizer::kEncodePollBytes;
      }
      const std::string_view rest = text.substr(at);
      // User-defined symbols are never merged.
      if (const AddedTokens::Match symbol = symbols_->FindAtStart(rest); symbol.num_bytes > 0) {
        if (!end_word(at)) return false;
        ids->push_back(symbol.id);
        word = at += symbol.num_bytes;
        continue;
      }
      const bool is_space = rest.starts_with(kSpaceSymbol);
      if (is_space && !follows_space && words_begin_at_spaces_ && !end_word(at)) return false;
      follows_space = is_space;
      at += NextUtf8(rest).num_bytes;
    }
    if (!end_word(text.size())) return false;
    if (!loose_characters_.empty()) ReplaceLooseCharacters(first, ids);
    return true;
  }

 private:
  BpeModel MakeModel(const SentencePieceFile& file) {
    BpeModel model;
    model.alphabet = BpeModel::Alphabet::kCharacters;
    model.byte_ids = byte_ids_;
    model.unknown_id = unknown_id_;
    model.fuse_unknown = !file.byte_fallback;
    model.pieces.resize(file.pieces.size());
    TextMap<int32_t> ids;  // of every text that may be a symbol
    std::set<float, std::greater<>> scores;
    for (size_t id = 0; id < file.pieces.size(); ++id) {
      const Piece& piece = file.pieces[id];
      if (!piece.IsText()) continue;
      ids.emplace(piece.text, int32_t(id));
      if (NextUtf8(piece.text).num_bytes == piece.text.size()) {
        model.characters.emplace(piece.text, int32_t(id));
      }
      scores.insert(piece.score);
      has_space_ = has_space_ || piece.text == kSpaceSymbol;
      const size_t space = piece.text.rfind(kSpaceSymbol);
      words_begin_at_spaces_ =
          words_begin_at_spaces_ &&
          (space == std::string::npos || piece.text.find_first_not_of(kSpaceSymbol) > space);
    }
    if (file.model_type != ModelType::kBpe) return model;
    // Characters that are no pieces but part of one can still be merged.
    for (const Piece& piece : file.pieces) {
      if (piece.IsText()) AddLooseCharacters(piece.text, &ids, &model);
    }
    TextMap<int32_t> ranks;
    for (size_t id = 0; id < file.pieces.size(); ++id) {
      const Piece& piece = file.pieces[id];
      if (!piece.IsText()) continue;
      model.pieces[id] = piece.text;
      const auto rank = int32_t(std::distance(scores.begin(), scores.find(piece.score)));
      for (size_t at = 1; at < piece.text.size(); ++at) {
        const auto left = ids.find(std::string_view(piece.text).substr(0, at));
        const auto right = ids.find(std::string_view(piece.text).substr(at));
        if (left == ids.end() || right == ids.end()) continue;
        model.merges.push_back(
            {.left = left->second, .right = right->second, .merged = int32_t(id), .rank = rank});
      }
    }
    return model;
  }

  void AddLooseCharacters(std::string_view text, TextMap<int32_t>* ids, BpeModel* model) {
    while (!text.empty()) {
      const std::string_view character = text.substr(0, NextUtf8(text).num_bytes);
      text.remove_prefix(character.size());
      const auto id = num_pieces_ + int32_t(loose_characters_.size());
      if (!ids->try_emplace(std::string(character), id).second) continue;
      model->characters.emplace(character, id);
      loose_characters_.emplace_back(character);
    }
  }

  // A loose character that was not merged is unknown.
  void ReplaceLooseCharacters(size_t first, std::vector<int32_t>* ids) const {
    std::vector<int32_t> replaced(ids->begin(), ids->begin() + ptrdiff_t(first));
    for (size_t i = first; i < ids->size(); ++i) {
      const int32_t id = (*ids)[i] < num_pieces_ ? (*ids)[i] : unknown_id_;
      if (id == unknown_id_ && byte_ids_[0] != kNoId) {
        for (const char c : loose_characters_[size_t((*ids)[i] - num_pieces_)]) {
          replaced.push_back(byte_ids_[uint8_t(c)]);
        }
      } else if (id != unknown_id_ || replaced.size() == first || replaced.back() != id) {
        replaced.push_back(id);
      }
    }
    *ids = std::move(replaced);
  }

  const int32_t num_pieces_;
  const int32_t unknown_id_;
  const std::array<int32_t, 256> byte_ids_;
  const AddedTokens* symbols_;
  bool words_begin_at_spaces_ = true, has_space_ = false;
  std::vector<std::string> loose_characters_;  // by id - num_pieces_
  const BpeEncoder encoder_;
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceFile file, int vocab_size, std::string hash,
                         const std::vector<AddedToken>& tokens)
      : file_(std::move(file)),
        hash_(std::move(hash)),
        symbols_(UserDefinedSymbols(file_)),
        tokens_(PairsOf(tokens)),
        bytes_(size_t(vocab_size)) {
    for (size_t id = 0; id < file_.pieces.size(); ++id) {
      bytes_[id] = FindBytes(file_.pieces[id]);
      max_piece_bytes_ = std::max(max_piece_bytes_,
                                  int(std::max(bytes_[id].size(), file_.pieces[id].text.size())));
    }
    max_piece_bytes_ = std::max(max_piece_bytes_, int(tokens_.MaxBytes()));
    for (const AddedToken& token : tokens) {
      bytes_[size_t(token.id)] = token.is_special ? "" : token.content;
    }
    if (file_.model_type == ModelType::kUnigram) {
      unigram_.emplace(file_);
    } else {
      merging_.emplace(file_, &symbols_);
    }
    // At a space between two letters, which becomes the dummy prefix of the rest. The unigram model
    // adds up scores of the whole text: their rounding may depend on the front.
    can_split_ = merging_ && merging_->WordsAreIndependent() && file_.add_dummy_prefix &&
                 file_.escape_whitespaces && !file_.treat_whitespace_as_suffix &&
                 !file_.character_map.MayCoverSpace() && !symbols_.MayCoverSpace() &&
                 !tokens_.MayCoverSpace();
  }

  int VocabSize() const override { return int(bytes_.size()); }

  absl::StatusOr<std::vector<int32_t>> Encode(
      std::string_view text, absl::FunctionRef<bool()> should_stop) const override {
    RETURN_IF_ERROR(CheckTokenizerText(text, should_stop));
    std::vector<int32_t> ids;
    const auto encode_part = [&](std::string_view part, bool begins_text) -> absl::Status {
      std::string normalized;
      RETURN_IF_ERROR(
          NormalizeForSentencePiece(file_, symbols_, part, begins_text, should_stop, &normalized));
      const bool is_done = unigram_ ? unigram_->Encode(normalized, should_stop, &ids)
                                    : merging_->Encode(normalized, should_stop, &ids);
      return is_done ? absl::OkStatus() : Stopped();
    };
    RETURN_IF_ERROR(tokens_.Split(text, should_stop, encode_part, &ids));
    return ids;
  }

  std::optional<int32_t> FindSpecialToken(std::string_view text) const override {
    const AddedTokens::Match match = tokens_.FindAtStart(text);
    const bool is_whole = match.num_bytes > 0 && match.num_bytes == text.size();
    if (is_whole && bytes_[size_t(match.id)].empty()) return match.id;
    return std::nullopt;
  }

  std::string_view PieceBytes(int32_t id) const override {
    LSSAR_CHECK(id >= 0 && id < VocabSize());
    return bytes_[size_t(id)];
  }

  // As the library's decoder, which removes a leading space in both cases.
  bool AddsDummyPrefix() const override {
    return file_.add_dummy_prefix || file_.remove_extra_whitespaces;
  }
  std::string_view Hash() const override { return hash_; }
  int MaxPieceBytes() const override { return max_piece_bytes_; }

  StableSplit SplitStable(std::string_view text, size_t from) const override {
    const size_t cut = can_split_ ? LastSpaceInWords(text, from) : text.npos;
    if (cut == text.npos) return {.front = {}, .rest = text};
    return {.front = text.substr(0, cut), .rest = text.substr(cut + 1)};
  }

 private:
  static std::vector<std::pair<std::string, int32_t>> PairsOf(
      const std::vector<AddedToken>& tokens) {
    std::vector<std::pair<std::string, int32_t>> pairs;
    for (const AddedToken& token : tokens) pairs.emplace_back(token.content, token.id);
    return pairs;
  }

  std::string FindBytes(const Piece& piece) const {
    switch (piece.type) {
      case PieceType::kControl: return "";
      case PieceType::kByte: return std::string(1, char(piece.byte));
      case PieceType::kUnknown: return file_.unk_surface;
      default: return absl::StrReplaceAll(piece.text, {{"\xE2\x96\x81", " "}});
    }
  }

  const SentencePieceFile file_;
  const std::string hash_;
  const AddedTokens symbols_, tokens_;
  std::vector<std::string> bytes_;  // by id
  int max_piece_bytes_ = 0;
  bool can_split_ = false;
  std::optional<UnigramEncoder> unigram_;  // one of the two
  std::optional<MergingEncoder> merging_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(
    const std::string& path, int vocab_size, std::vector<AddedToken> tokens) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
  ASSIGN_OR_RETURN(SentencePieceFile file, ParseSentencePieceFile(bytes, path, vocab_size));
  for (AddedToken& token : tokens) {
    if (token.id != kNoId) continue;
    const auto piece = std::ranges::find(file.pieces, token.content, &Piece::text);
    if (piece != file.pieces.end()) token.id = int32_t(piece - file.pieces.begin());
  }
  std::erase_if(tokens, [](const AddedToken& token) { return token.id == kNoId; });
  for (const AddedToken& token : tokens) {
    const bool is_piece = token.id >= 0 && size_t(token.id) < file.pieces.size();
    if (token.id < 0 || token.id >= vocab_size ||
        (is_piece && file.pieces[size_t(token.id)].text != token.content)) {
      return absl::InvalidArgumentError(StrCat(
          path, ": the token \"", token.content.substr(0, 80), "\" beside it has id ", token.id,
          is_piece ? ", which is another piece"
                   : StrCat(", must be below vocab_size, ", vocab_size)));
    }
  }
  Sha256 hash;
  hash.Add(bytes);
  return std::make_unique<SentencePieceTokenizer>(std::move(file), vocab_size, hash.ShortHex(),
                                                  tokens);
}

}  // namespace lssar
