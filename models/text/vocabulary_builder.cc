#include "models/text/vocabulary_builder.h"

#include <algorithm>
#include <charconv>

#include "base/quote.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"

namespace lssar {
namespace {

// UTF-8 of a character below U+0800.
std::string Spell(int character) {
  if (character < 0x80) return std::string(1, char(character));
  return {char(0xC0 | character >> 6), char(0x80 | (character & 0x3F))};
}

// The byte of a piece "<0x0A>".
std::optional<uint8_t> ByteOf(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return std::nullopt;
  uint8_t byte = 0;
  const char* const end = piece.data() + 5;
  const auto result = std::from_chars(piece.data() + 3, end, byte, 16);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return byte;
}

std::string ReplaceSpaceSymbols(std::string_view name) {
  std::string bytes;
  while (!name.empty()) {
    if (name.starts_with(kSpaceSymbol)) {
      bytes += ' ';
      name.remove_prefix(kSpaceSymbol.size());
    } else {
      bytes += name.front();
      name.remove_prefix(1);
    }
  }
  return bytes;
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    bytes_[Spell(prints ? byte : next++)] = char(byte);
  }
}

std::optional<std::string> ByteAlphabet::BytesOf(std::string_view piece) const {
  std::string bytes;
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, NextUtf8(piece).num_bytes);
    const auto found = bytes_.find(character);
    if (found == bytes_.end()) return std::nullopt;
    bytes += found->second;
    piece.remove_prefix(character.size());
  }
  return bytes;
}

VocabularyBuilder::VocabularyBuilder(std::string source, int vocab_size,
                                     BpeModel::Alphabet alphabet)
    : source_(std::move(source)), names_(size_t(vocab_size)) {
  vocabulary_.pieces.resize(size_t(vocab_size));
  vocabulary_.model.alphabet = alphabet;
}

absl::Status VocabularyBuilder::Fault(std::string_view problem) const {
  return absl::InvalidArgumentError(StrCat(source_, ": ", problem));
}

absl::Status VocabularyBuilder::CheckId(std::string_view name, int64_t id) const {
  const auto vocab_size = int64_t(vocabulary_.pieces.size());
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return Fault(StrCat("piece ", Quote(name), " has id ", id,
                      ", must be below config.json's vocab_size, ", vocab_size));
}

absl::Status VocabularyBuilder::AddPiece(const std::string& name, int64_t id) {
  RETURN_IF_ERROR(CheckId(name, id));
  std::string& name_of_id = names_[size_t(id)];
  if (!name_of_id.empty()) {
    return Fault(StrCat("id ", id, " belongs to ", Quote(name_of_id), " and to ", Quote(name)));
  }
  if (name.empty()) return Fault(StrCat("the piece with id ", id, " is empty"));
  if (!ids_.emplace(name, int32_t(id)).second) {
    return Fault(StrCat("piece ", Quote(name), " occurs twice"));
  }
  name_of_id = name;
  vocabulary_.pieces[size_t(id)] = vocabulary_.model.alphabet == BpeModel::Alphabet::kBytes
                                       ? alphabet_.BytesOf(name).value_or("")
                                       : ReplaceSpaceSymbols(name);
  return absl::OkStatus();
}

absl::Status VocabularyBuilder::AddBytes(const std::string& bytes, int64_t id) {
  if (bytes.size() > kMaxTokenBytes) {
    return Fault(StrCat("the piece with id ", id, " has ", bytes.size(),
                        " bytes, must have at most ", kMaxTokenBytes));
  }
  RETURN_IF_ERROR(AddPiece(bytes, id));
  vocabulary_.pieces[size_t(id)] = bytes;
  return absl::OkStatus();
}

void VocabularyBuilder::FindSymbols(bool has_byte_fallback) {
  BpeModel& model = vocabulary_.model;
  if (model.alphabet == BpeModel::Alphabet::kBytes) {
    for (size_t id = 0; id < vocabulary_.pieces.size(); ++id) {
      const std::string& bytes = vocabulary_.pieces[id];
      if (bytes.size() == 1) model.byte_ids[uint8_t(bytes[0])] = int32_t(id);
    }
  } else {
    for (const auto& [name, id] : ids_) {
      if (NextUtf8(name).num_bytes == name.size()) model.characters.emplace(name, id);
      const std::optional<uint8_t> byte = ByteOf(name);
      if (!has_byte_fallback || !byte) continue;
      model.byte_ids[*byte] = id;
      vocabulary_.pieces[size_t(id)] = std::string(1, char(*byte));
    }
  }
}

std::optional<int> VocabularyBuilder::FirstByteWithoutPiece() const {
  const auto& ids = vocabulary_.model.byte_ids;
  const auto missing = std::ranges::find(ids, kNoId);
  return missing == ids.end() ? std::nullopt : std::optional(int(missing - ids.begin()));
}

absl::Status VocabularyBuilder::AddMerge(std::string_view left, std::string_view right,
                                         std::string_view where) {
  const std::string merged = StrCat(left, right);
  BpeMerge merge{};
  for (const auto& [name, id] : {std::pair<std::string_view, int32_t*>{left, &merge.left},
                                 {right, &merge.right},
                                 {merged, &merge.merged}}) {
    *id = IdOf(name);
    if (*id != kNoId) continue;
    return absl::InvalidArgumentError(StrCat(where, ": merges ", Quote(left), " and ", Quote(right),
                                             ", but ", Quote(name), " is not in the vocabulary"));
  }
  if (!merged_pairs_.emplace(merge.left, merge.right).second) {
    return absl::InvalidArgumentError(
        StrCat(where, ": merges ", Quote(left), " and ", Quote(right), " a second time"));
  }
  merge.rank = int32_t(vocabulary_.model.merges.size());
  vocabulary_.model.merges.push_back(merge);
  merges_across_spaces_ =
      merges_across_spaces_ || (right.starts_with(kSpaceSymbol) && !left.ends_with(kSpaceSymbol));
  return absl::OkStatus();
}

void VocabularyBuilder::AddAllMerges() {
  for (size_t id = 0; id < names_.size(); ++id) {
    const std::string_view name = names_[id];
    for (size_t at = 1; at < name.size(); ++at) {
      const int32_t left = IdOf(name.substr(0, at));
      if (left == kNoId) continue;
      const int32_t right = IdOf(name.substr(at));
      if (right == kNoId) continue;
      vocabulary_.model.merges.push_back(
          {.left = left, .right = right, .merged = int32_t(id), .rank = int32_t(id)});
    }
  }
}

absl::Status VocabularyBuilder::AddToken(AddedToken token) {
  RETURN_IF_ERROR(CheckId(token.content, token.id));
  if (token.content.empty()) return Fault(StrCat("the added token ", token.id, " has no content"));
  if (token.content.size() > kMaxTokenBytes) {
    return Fault(StrCat("the added token ", token.id, " has ", token.content.size(),
                        " bytes, must have at most ", kMaxTokenBytes));
  }
  if (FindInvalidUtf8(token.content)) {
    return Fault(StrCat("the added token ", token.id, " is not UTF-8"));
  }
  // Hugging Face's tokenizers would take another id than the file's.
  if (const int32_t id = IdOf(token.content); id != kNoId && id != token.id) {
    return Fault(StrCat("the added token ", Quote(token.content), " has id ", token.id,
                        ", and is piece ", id, " of the vocabulary"));
  }
  if (const std::string& name = names_[size_t(token.id)]; !name.empty() && name != token.content) {
    return Fault(StrCat("the added token ", Quote(token.content), " has id ", token.id,
                        ", which is piece ", Quote(name), " of the vocabulary"));
  }
  vocabulary_.pieces[size_t(token.id)] = token.is_special ? "" : token.content;
  vocabulary_.added_tokens.push_back(std::move(token));
  return absl::OkStatus();
}

absl::Status VocabularyBuilder::AddSpecialTokens() {
  std::vector<bool> is_made(vocabulary_.pieces.size());
  for (const int32_t id : vocabulary_.model.byte_ids) {
    if (id != kNoId) is_made[size_t(id)] = true;
  }
  for (const BpeMerge& merge : vocabulary_.model.merges) is_made[size_t(merge.merged)] = true;
  for (size_t id = 0; id < names_.size(); ++id) {
    if (is_made[id] || names_[id].empty()) continue;
    RETURN_IF_ERROR(AddToken({.content = names_[id], .id = int32_t(id)}));
  }
  return absl::OkStatus();
}

int64_t VocabularyBuilder::NumIds() const {
  auto count = std::ssize(names_);
  while (count > 0 && names_[size_t(count - 1)].empty()) --count;
  return count;
}

int32_t VocabularyBuilder::IdOf(std::string_view name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? kNoId : found->second;
}

void VocabularyBuilder::MakeAllPiecesWords() {
  const bool has_bytes = vocabulary_.model.alphabet == BpeModel::Alphabet::kBytes;
  for (size_t id = 0; id < names_.size(); ++id) {
    const std::string& word = has_bytes ? vocabulary_.pieces[id] : names_[id];
    if (!word.empty()) vocabulary_.model.words.try_emplace(word, int32_t(id));
  }
}

BpeVocabulary VocabularyBuilder::Finish(std::string hash) && {
  vocabulary_.hash = std::move(hash);
  if (vocabulary_.model.words.empty()) {
    vocabulary_.model.pieces = vocabulary_.model.alphabet == BpeModel::Alphabet::kBytes
                                   ? vocabulary_.pieces
                                   : std::move(names_);
  }
  return std::move(vocabulary_);
}

absl::Status AddPieces(const nlohmann::json& names, const std::string& path,
                       VocabularyBuilder* builder) {
  for (const auto& [name, id] : names.items()) {
    const bool fits = id.is_number_integer() &&
                      (!id.is_number_unsigned() || id.get<uint64_t>() <= uint64_t(INT64_MAX));
    if (!fits) {
      return absl::InvalidArgumentError(
          StrCat(path, ": piece ", Quote(name), " has no integer id"));
    }
    RETURN_IF_ERROR(builder->AddPiece(name, id.get<int64_t>()));
  }
  return absl::OkStatus();
}

std::string HashOfFiles(std::initializer_list<std::string_view> files) {
  Sha256 hash;
  for (const std::string_view file : files) hash.Add(file);
  return hash.ShortHex();
}

}  // namespace lssar
