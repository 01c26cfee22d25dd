#include "models/text/sentence_piece_tokenizer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "models/text/added_tokens.h"
#include "models/text/bpe.h"
#include "models/text/pre_tokenizer.h"
#include "models/text/sentence_piece_file.h"
#include "models/text/sentence_piece_library.h"
#include "models/text/text_normalizer.h"
#include "models/text/tokens_beside.h"

namespace lssar {
namespace {

using ModelType = SentencePieceFile::ModelType;
using Piece = SentencePieceFile::Piece;
using PieceType = SentencePieceFile::PieceType;

AddedTokens UserDefinedSymbols(const SentencePieceFile& file) {
  std::vector<std::pair<std::string, int32_t>> symbols;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type != PieceType::kUserDefined) continue;
    symbols.emplace_back(file.pieces[id].text, int32_t(id));
  }
  return AddedTokens(symbols);
}

// Cuts long texts where the library would not join what stands on the two sides: where no piece has
// the two characters in a row. The library then meets short texts: an encoding can be stopped, and
// runs of unknown characters, of which its time is quadratic, are cut too.
class TextCutter {
 public:
  // `file` and `symbols` must outlive it.
  TextCutter(const SentencePieceFile& file, const AddedTokens& symbols)
      : file_(file), symbols_(symbols) {
    for (const Piece& piece : file.pieces) {
      if (!piece.IsText()) continue;
      std::string_view before;
      for (std::string_view rest = piece.text; !rest.empty();) {
        const std::string_view character = rest.substr(0, NextUtf8(rest).num_bytes);
        if (!before.empty()) pairs_.insert(PairOf(before, character));
        before = character;
        rest.remove_prefix(character.size());
      }
    }
  }

  // The end of the part of `text` that begins at `begin`. Adds the bytes that the normalizer makes
  // of it to `normalized_bytes`: not more than it makes. CANCELLED: should_stop, which is asked
  // every 4 KiB.
  absl::StatusOr<size_t> FindEnd(std::string_view text, size_t begin,
                                 absl::FunctionRef<bool()> should_stop,
                                 size_t* normalized_bytes) const {
    std::string_view last;  // character of the normalized text; views `text` or the rules
    for (size_t at = begin, polled_at = begin; at < text.size();) {
      if (at >= polled_at) {
        if (should_stop()) return EncodingStopped();
        polled_at = at + Tokenizer::kEncodePollBytes;
      }
      const std::string_view rest = text.substr(at);
      const auto [num_bytes, normalized] = NextPart(rest);
      if (at >= begin + Tokenizer::kEncodePollBytes && MayCut(rest, last, normalized)) return at;
      at += num_bytes;
      *normalized_bytes += normalized.size();
      if (normalized.empty()) continue;
      size_t last_begin = normalized.size() - 1;
      while (last_begin > 0 && (uint8_t(normalized[last_begin]) & 0xC0) == 0x80) --last_begin;
      last = normalized.substr(last_begin);
    }
    return text.size();
  }

 private:
  // The bytes that the normalizer replaces next, and by what.
  std::pair<size_t, std::string_view> NextPart(std::string_view text) const {
    if (const size_t size = symbols_.FindAtStart(text).num_bytes; size > 0) {
      return {size, text.substr(0, size)};
    }
    const CharacterMap::Rule rule = file_.character_map.Match(text);
    if (rule.num_bytes > 0) return {rule.num_bytes, rule.replacement};
    const size_t size = NextUtf8(text).num_bytes;
    return {size, text.substr(0, size)};
  }

  // Spaces stay with what is behind them, so that none is at the end of a part, where it could be
  // removed. Behind a rule that ends within a character there is no cut.
  bool MayCut(std::string_view rest, std::string_view last, std::string_view next) const {
    if (file_.treat_whitespace_as_suffix || last.empty() || next.empty() || last == " " ||
        (uint8_t(rest[0]) & 0xC0) == 0x80) {
      return false;
    }
    const std::string_view first = next.substr(0, NextUtf8(next).num_bytes);
    return !pairs_.contains(PairOf(last, Escaped(first)));
  }

  std::string_view Escaped(std::string_view character) const {
    return character == " " && file_.escape_whitespaces ? kSpaceSymbol : character;
  }

  static uint64_t PairOf(std::string_view left, std::string_view right) {
    const auto number = [](std::string_view character) {
      uint64_t bytes = 0;
      for (const char c : character.substr(0, 4)) bytes = bytes << 8 | uint8_t(c);
      return bytes;
    };
    return number(left) << 32 | number(right);
  }

  const SentencePieceFile& file_;
  const AddedTokens& symbols_;
  absl::flat_hash_set<uint64_t> pairs_;  // of characters in a row in a piece
};

// True if a word's ids do not depend on what is before its U+2581: no piece has U+2581 behind
// another character, and U+2581 is a piece, so that no run of unknown characters includes it. Not
// for unigram models: they add up scores of the whole text, whose rounding may depend on the front.
bool WordsAreIndependent(const SentencePieceFile& file) {
  bool has_space = false;
  for (const Piece& piece : file.pieces) {
    if (!piece.IsText()) continue;
    has_space = has_space || piece.text == kSpaceSymbol;
    const size_t space = piece.text.rfind(kSpaceSymbol);
    if (space != std::string::npos && piece.text.find_first_not_of(kSpaceSymbol) <= space) {
      return false;
    }
  }
  return has_space && file.model_type != ModelType::kUnigram;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceFile file, std::unique_ptr<SentencePieceLibrary> library,
                         int vocab_size, std::string hash, const std::vector<AddedToken>& tokens)
      : file_(std::move(file)),
        library_(std::move(library)),
        hash_(std::move(hash)),
        symbols_(UserDefinedSymbols(file_)),
        tokens_(PairsOf(tokens)),
        cutter_(file_, symbols_),
        bytes_(size_t(vocab_size)) {
    for (size_t id = 0; id < file_.pieces.size(); ++id) {
      bytes_[id] = FindBytes(file_.pieces[id]);
      max_piece_bytes_ = std::max(max_piece_bytes_,
                                  int(std::max(bytes_[id].size(), file_.pieces[id].text.size())));
    }
    max_piece_bytes_ = std::max(max_piece_bytes_, int(tokens_.MaxBytes()));
    for (size_t id = 0; id < file_.pieces.size(); ++id) {
      if (file_.pieces[id].type == PieceType::kControl) {
        special_names_.emplace(int32_t(id), file_.pieces[id].text);
      }
    }
    for (const AddedToken& token : tokens) {
      bytes_[size_t(token.id)] = token.is_special ? "" : token.content;
      special_names_.erase(token.id);
      if (token.is_special) special_names_.emplace(token.id, token.content);
    }
    // At a space between two letters, which becomes the dummy prefix of the rest.
    can_split_ = WordsAreIndependent(file_) && file_.add_dummy_prefix && file_.escape_whitespaces &&
                 !file_.treat_whitespace_as_suffix && !file_.character_map.MayCoverSpace() &&
                 !symbols_.MayCoverSpace() && !tokens_.MayCoverSpace();
  }

  int VocabSize() const override { return int(bytes_.size()); }

  absl::StatusOr<std::vector<int32_t>> Encode(
      std::string_view text, absl::FunctionRef<bool()> should_stop) const override {
    RETURN_IF_ERROR(CheckTokenizerText(text, should_stop));
    std::vector<int32_t> ids;
    const auto encode_part = [&](std::string_view part, bool begins_text) {
      return EncodePart(part, begins_text, should_stop, &ids);
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

  std::string_view SpecialTokenName(int32_t id) const override {
    const auto found = special_names_.find(id);
    return found == special_names_.end() ? std::string_view() : found->second;
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
  absl::Status EncodePart(std::string_view text, bool begins_text,
                          absl::FunctionRef<bool()> should_stop, std::vector<int32_t>* ids) const {
    size_t normalized_bytes = 0;
    for (size_t begin = 0; begin < text.size();) {
      ASSIGN_OR_RETURN(const size_t end,
                       cutter_.FindEnd(text, begin, should_stop, &normalized_bytes));
      if (normalized_bytes > MaxNormalizedBytes(text.size())) {
        return TooLongWhenNormalized(text.size());
      }
      const size_t first = ids->size();
      std::string error;
      if (!library_->Encode(text.substr(begin, end - begin), begin > 0 || !begins_text, ids,
                            &error)) {
        return absl::InvalidArgumentError(error);
      }
      // One id stands for a run of unknown characters, also for one that was cut.
      const bool joins = begin > 0 && !file_.byte_fallback && ids->size() > first &&
                         (*ids)[first] == file_.unknown_id && (*ids)[first - 1] == file_.unknown_id;
      if (joins) ids->erase(ids->begin() + ptrdiff_t(first));
      begin = end;
    }
    return absl::OkStatus();
  }

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
  const std::unique_ptr<SentencePieceLibrary> library_;
  const std::string hash_;
  const AddedTokens symbols_, tokens_;
  const TextCutter cutter_;
  std::vector<std::string> bytes_;  // by id
  std::map<int32_t, std::string> special_names_;
  int max_piece_bytes_ = 0;
  bool can_split_ = false;
};

}  // namespace

absl::Status GiveIds(const std::string& path, const SentencePieceFile& file, int vocab_size,
                     std::vector<AddedToken>* tokens) {
  absl::flat_hash_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < file.pieces.size(); ++id) ids.emplace(file.pieces[id].text, int32_t(id));
  const auto id_of = [&](std::string_view content) {
    const auto found = ids.find(content);
    return found == ids.end() ? kNoId : found->second;
  };
  const auto num_pieces = std::ssize(file.pieces);
  RETURN_IF_ERROR(GiveIds(path, num_pieces, num_pieces, vocab_size, id_of, tokens));
  for (const AddedToken& token : *tokens) {
    const int32_t piece = id_of(token.content);
    const bool is_another = token.id < num_pieces || piece != kNoId;
    if (token.id >= 0 && token.id < vocab_size && (piece == token.id || !is_another)) continue;
    return absl::InvalidArgumentError(
        StrCat(path, ": the token ", Quote(token.content), " beside it has id ", token.id,
               piece != kNoId ? StrCat(", and is piece ", piece)
               : is_another   ? ", which is another piece"
                              : StrCat(", must be below vocab_size, ", vocab_size)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(
    const std::string& path, int vocab_size, std::vector<AddedToken> tokens) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
  ASSIGN_OR_RETURN(SentencePieceFile file, ParseSentencePieceFile(bytes, path, vocab_size));
  RETURN_IF_ERROR(GiveIds(path, file, vocab_size, &tokens));
  std::string error;
  std::unique_ptr<SentencePieceLibrary> library =
      SentencePieceLibrary::Load(WithoutSelfTest(bytes), int(file.pieces.size()), &error);
  if (library == nullptr) {
    return absl::InvalidArgumentError(StrCat(path, ": libsentencepiece refuses it: ", error));
  }
  Sha256 hash;
  hash.Add(bytes);
  return std::make_unique<SentencePieceTokenizer>(std::move(file), std::move(library), vocab_size,
                                                  hash.ShortHex(), tokens);
}

}  // namespace lssar
