#include "models/text/sentence_piece_file.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/check.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"

namespace lssar {
namespace {

using PieceType = SentencePieceFile::PieceType;
using ModelType = SentencePieceFile::ModelType;

constexpr size_t kMaxPieceBytes = 1024;
constexpr uint64_t kFirstExtension = 200;
constexpr uint64_t kSelfTestData = 4;

// One field of a protobuf message.
struct Field {
  enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  uint64_t number = 0;
  Wire wire = Wire::kVarint;
  uint64_t value = 0;      // kVarint, kFixed64, kFixed32
  std::string_view bytes;  // kBytes
};

std::string_view NameOf(Field::Wire wire) {
  switch (wire) {
    case Field::Wire::kVarint: return "varint";
    case Field::Wire::kFixed64: return "64-bit";
    case Field::Wire::kBytes: return "length-delimited";
    case Field::Wire::kFixed32: return "32-bit";
  }
  return "";
}

// The fields of one message, in order. Every error starts with `name`, a path or a field.
class Message {
 public:
  Message(std::string name, std::string_view bytes) : name_(std::move(name)), bytes_(bytes) {}

  const std::string& Name() const { return name_; }
  bool AtEnd() const { return at_ == bytes_.size(); }
  size_t Position() const { return at_; }

  absl::Status Fault(std::string_view problem) const {
    return absl::InvalidArgumentError(StrCat(name_, ": ", problem));
  }

  absl::StatusOr<Field> Next() {
    const size_t begin = at_;
    const std::optional<uint64_t> tag = TakeVarint();
    Field field;
    bool is_whole = tag.has_value() && *tag >> 3 != 0 && *tag >> 3 < (1u << 29);
    if (is_whole) {
      field.number = *tag >> 3;
      field.wire = Field::Wire(*tag & 7);
      switch (field.wire) {
        case Field::Wire::kVarint: is_whole = Take(TakeVarint(), &field.value); break;
        case Field::Wire::kFixed64: is_whole = Take(TakeFixed(8), &field.value); break;
        case Field::Wire::kFixed32: is_whole = Take(TakeFixed(4), &field.value); break;
        case Field::Wire::kBytes: {
          uint64_t size = 0;
          is_whole = Take(TakeVarint(), &size) && size <= bytes_.size() - at_;
          if (is_whole) field.bytes = bytes_.substr(at_, size_t(size));
          if (is_whole) at_ += size_t(size);
          break;
        }
        default: is_whole = false;
      }
    }
    if (!is_whole) {
      return Fault(
          StrCat("not a SentencePiece model: damaged at byte ", begin, " of ", bytes_.size()));
    }
    return field;
  }

  // An error unless `field` has this wire type, and has not occurred before.
  absl::Status CheckSingle(const Field& field, Field::Wire wire) {
    RETURN_IF_ERROR(CheckWire(field, wire));
    if (seen_.insert(field.number).second) return absl::OkStatus();
    return Fault(StrCat("field ", field.number, " occurs twice"));
  }
  absl::Status CheckWire(const Field& field, Field::Wire wire) const {
    if (field.wire == wire) return absl::OkStatus();
    return Fault(
        StrCat("field ", field.number, " is ", NameOf(field.wire), ", must be ", NameOf(wire)));
  }
  // For a number that sentencepiece_model.proto does not have. Extensions change nothing.
  absl::Status CheckUnknown(const Field& field) const {
    if (field.number >= kFirstExtension) return absl::OkStatus();
    return Fault(StrCat("field ", field.number, " is unknown"));
  }

 private:
  static bool Take(const std::optional<uint64_t>& taken, uint64_t* value) {
    *value = taken.value_or(0);
    return taken.has_value();
  }

  std::optional<uint64_t> TakeVarint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && at_ < bytes_.size(); shift += 7) {
      const auto byte = uint8_t(bytes_[at_++]);
      value |= uint64_t(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::optional<uint64_t> TakeFixed(size_t num_bytes) {
    if (bytes_.size() - at_ < num_bytes) return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < num_bytes; ++i) value |= uint64_t(uint8_t(bytes_[at_++])) << (8 * i);
    return value;
  }

  std::string name_;
  std::string_view bytes_;
  size_t at_ = 0;
  std::set<uint64_t> seen_;
};

absl::StatusOr<SentencePieceFile::Piece> ParsePiece(Message message) {
  SentencePieceFile::Piece piece;
  while (!message.AtEnd()) {
    ASSIGN_OR_RETURN(const Field field, message.Next());
    switch (field.number) {
      case 1:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kBytes));
        piece.text = field.bytes;
        break;
      case 2:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kFixed32));
        piece.score = std::bit_cast<float>(uint32_t(field.value));
        break;
      case 3:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kVarint));
        if (field.value < 1 || field.value > 6) {
          return message.Fault(StrCat("type is ", field.value, ", must be 1 to 6"));
        }
        piece.type = PieceType(field.value);
        break;
      default: RETURN_IF_ERROR(message.CheckUnknown(field));
    }
  }
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes) {
    return message.Fault(
        StrCat("piece has ", piece.text.size(), " bytes, must have 1 to ", kMaxPieceBytes));
  }
  if (FindInvalidUtf8(piece.text) || piece.text.find('\0') != std::string::npos) {
    return message.Fault("piece must be UTF-8 without NUL");
  }
  if (!std::isfinite(piece.score)) {
    return message.Fault(StrCat("score is ", piece.score, ", must be finite"));
  }
  if (piece.type == PieceType::kByte) {
    const char* const end = piece.text.data() + 5;
    if (piece.text.size() != 6 || !piece.text.starts_with("<0x") || piece.text[5] != '>' ||
        std::from_chars(piece.text.data() + 3, end, piece.byte, 16).ptr != end ||
        piece.text.find_first_of("abcdef") != std::string::npos) {
      return message.Fault("a byte piece must be <0x00> to <0xFF>");
    }
  }
  return piece;
}

absl::Status ParseTrainerSpec(Message message, SentencePieceFile* file) {
  while (!message.AtEnd()) {
    ASSIGN_OR_RETURN(const Field field, message.Next());
    switch (field.number) {
      case 3:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kVarint));
        if (field.value != 1 && field.value != 2 && field.value != 4) {
          return message.Fault(
              StrCat("model_type is ", field.value, ", must be UNIGRAM (1), BPE (2) or CHAR (4)"));
        }
        file->model_type = ModelType(field.value);
        break;
      case 24:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kVarint));
        file->treat_whitespace_as_suffix = field.value != 0;
        break;
      case 35:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kVarint));
        file->byte_fallback = field.value != 0;
        break;
      case 44:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kBytes));
        if (FindInvalidUtf8(field.bytes)) return message.Fault("unk_surface must be UTF-8");
        if (field.bytes.size() > kMaxPieceBytes) {
          return message.Fault(StrCat("unk_surface has ", field.bytes.size(),
                                      " bytes, must have at most ", kMaxPieceBytes));
        }
        // The library reads it up to a NUL.
        file->unk_surface = field.bytes.substr(0, field.bytes.find('\0'));
        break;
      default: break;  // says how the model was trained
    }
  }
  return absl::OkStatus();
}

absl::Status ParseNormalizerSpec(Message message, SentencePieceFile* file) {
  while (!message.AtEnd()) {
    ASSIGN_OR_RETURN(const Field field, message.Next());
    switch (field.number) {
      case 1:
      case 6: break;  // the name of the rules, and the rules as text
      case 2: {
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kBytes));
        absl::StatusOr<CharacterMap> map = CharacterMap::Parse(field.bytes);
        if (!map.ok()) return message.Fault(StrCat(map.status().message()));
        file->character_map = *std::move(map);
        break;
      }
      case 3:
      case 4:
      case 5: {
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kVarint));
        bool* const flag = field.number == 3   ? &file->add_dummy_prefix
                           : field.number == 4 ? &file->remove_extra_whitespaces
                                               : &file->escape_whitespaces;
        *flag = field.value != 0;
        break;
      }
      default: RETURN_IF_ERROR(message.CheckUnknown(field));
    }
  }
  return absl::OkStatus();
}

// A denormalizer would change decoded texts.
absl::Status CheckDenormalizerSpec(Message message) {
  while (!message.AtEnd()) {
    ASSIGN_OR_RETURN(const Field field, message.Next());
    if (field.number == 2 && !field.bytes.empty()) {
      return message.Fault("precompiled_charsmap must be empty");
    }
  }
  return absl::OkStatus();
}

// What concerns more than one piece.
absl::Status CheckPieces(const std::string& path, SentencePieceFile* file) {
  absl::flat_hash_set<std::string> texts;
  int num_bytes = 0, num_unknown = 0;
  for (size_t id = 0; id < file->pieces.size(); ++id) {
    const SentencePieceFile::Piece& piece = file->pieces[id];
    const auto fault = [&](std::string_view problem) {
      return absl::InvalidArgumentError(
          StrCat(path, ": pieces[", id, "], ", Quote(piece.text), ", ", problem));
    };
    if (!texts.insert(piece.text).second) return fault("occurs twice");
    if (piece.type == PieceType::kUnknown) {
      file->unknown_id = int32_t(id);
      if (++num_unknown > 1) return fault("is a second unknown piece");
    }
    if (piece.type == PieceType::kByte) {
      ++num_bytes;
      if (!file->byte_fallback) return fault("is a byte, and byte_fallback is false");
    }
    if (piece.type == PieceType::kUnused && file->model_type == ModelType::kBpe) {
      return fault("is unused, which is not supported in a BPE model");
    }
    if (piece.type == PieceType::kControl && NextUtf8(piece.text).num_bytes == piece.text.size()) {
      return fault("is a control piece of one character, which a text could contain");
    }
  }
  if (num_unknown == 0) return absl::InvalidArgumentError(path + ": has no unknown piece");
  if (file->byte_fallback && num_bytes != 256) {
    return absl::InvalidArgumentError(
        StrCat(path, ": has ", num_bytes, " byte pieces, must have 256 for byte_fallback"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceFile> ParseSentencePieceFile(std::string_view bytes,
                                                         const std::string& path, int max_pieces) {
  Message message(path, bytes);
  SentencePieceFile file;
  while (!message.AtEnd()) {
    ASSIGN_OR_RETURN(const Field field, message.Next());
    switch (field.number) {
      case 1: {
        RETURN_IF_ERROR(message.CheckWire(field, Field::Wire::kBytes));
        if (file.pieces.size() == size_t(max_pieces)) {
          return message.Fault(
              StrCat("has more than ", max_pieces, " pieces, config.json's vocab_size"));
        }
        const std::string name = StrCat(path, ": pieces[", file.pieces.size(), "]");
        ASSIGN_OR_RETURN(SentencePieceFile::Piece piece, ParsePiece(Message(name, field.bytes)));
        file.pieces.push_back(std::move(piece));
        break;
      }
      case 2:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kBytes));
        RETURN_IF_ERROR(ParseTrainerSpec(Message(path + ": trainer_spec", field.bytes), &file));
        break;
      case 3:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kBytes));
        RETURN_IF_ERROR(
            ParseNormalizerSpec(Message(path + ": normalizer_spec", field.bytes), &file));
        break;
      case kSelfTestData: break;
      case 5:
        RETURN_IF_ERROR(message.CheckSingle(field, Field::Wire::kBytes));
        RETURN_IF_ERROR(CheckDenormalizerSpec(Message(path + ": denormalizer_spec", field.bytes)));
        break;
      default: RETURN_IF_ERROR(message.CheckUnknown(field));
    }
  }
  if (file.pieces.empty()) return message.Fault("not a SentencePiece model: it has no pieces");
  RETURN_IF_ERROR(CheckPieces(path, &file));
  return file;
}

std::string WithoutSelfTest(std::string_view bytes) {
  Message message("", bytes);
  std::string rest;
  while (!message.AtEnd()) {
    const size_t begin = message.Position();
    const absl::StatusOr<Field> field = message.Next();
    LSSAR_CHECK(field.ok());
    if (field->number == kSelfTestData) continue;
    rest += bytes.substr(begin, message.Position() - begin);
  }
  return rest;
}

}  // namespace lssar
