// ReadByteLevelVocabulary (byte_level_tokenizer.h): tokenizer.json, or vocab.json and merges.txt.
#include <optional>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "kernels/read_file.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "models/byte_level_tokenizer.h"
#include "models/json_fields.h"
#include "models/sha256.h"
#include "models/utf8.h"

namespace lssar {
namespace {

using nlohmann::json;

constexpr int kNoPiece = -1;
constexpr int kMaxId = 1 << 30;

// GPT-2's files write each byte as one printable character: the byte itself where it is printable,
// else the next character from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      bytes_[Spell(prints ? byte : next++)] = char(byte);
    }
  }

  // nullopt: the piece has a character outside the alphabet.
  std::optional<std::string> BytesOf(std::string_view piece) const {
    std::string bytes;
    while (!piece.empty()) {
      const std::string_view character = piece.substr(0, NextUtf8(piece).num_bytes);
      const auto found = bytes_.find(std::string(character));
      if (found == bytes_.end()) return std::nullopt;
      bytes += found->second;
      piece.remove_prefix(character.size());
    }
    return bytes;
  }

 private:
  // UTF-8 of a character below U+0800.
  static std::string Spell(int character) {
    if (character < 0x80) return std::string(1, char(character));
    return {char(0xC0 | character >> 6), char(0x80 | (character & 0x3F))};
  }

  absl::flat_hash_map<std::string, char> bytes_;
};

// Builds a vocabulary from either form of files.
class Builder {
 public:
  Builder(std::string source, int vocab_size)
      : source_(std::move(source)), names_(size_t(vocab_size)) {
    vocabulary_.pieces.resize(size_t(vocab_size));
  }

  absl::Status AddPieces(const json& names) {
    for (const auto& [name, id] : names.items()) {
      RETURN_IF_ERROR(AddPiece(name, id));
    }
    vocabulary_.byte_ids.fill(kNoPiece);
    for (size_t id = 0; id < vocabulary_.pieces.size(); ++id) {
      const std::string& bytes = vocabulary_.pieces[id];
      if (bytes.size() == 1) vocabulary_.byte_ids[uint8_t(bytes[0])] = int32_t(id);
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (vocabulary_.byte_ids[size_t(byte)] == kNoPiece) {
        return Fault(StrCat("has no piece for byte ", byte));
      }
    }
    return absl::OkStatus();
  }

  // `where`: "merges.txt: line 7".
  absl::Status AddMerge(std::string_view left, std::string_view right, std::string_view where) {
    const std::string merged = StrCat(left, right);
    BpeMerge merge{};
    for (const auto& [name, id] : {std::pair<std::string_view, int32_t*>{left, &merge.left},
                                   {right, &merge.right},
                                   {merged, &merge.merged}}) {
      const auto found = ids_.find(std::string(name));
      if (found == ids_.end()) {
        return absl::InvalidArgumentError(StrCat(where, ": merges \"", left, "\" and \"", right,
                                                 "\", but \"", name,
                                                 "\" is not in the vocabulary"));
      }
      *id = found->second;
    }
    vocabulary_.merges.push_back(merge);
    return absl::OkStatus();
  }

  // A special token has no bytes.
  absl::Status AddToken(const std::string& content, int64_t id, bool is_special) {
    RETURN_IF_ERROR(CheckId(content, id));
    if (content.empty()) return Fault(StrCat("the added token ", id, " has no content"));
    vocabulary_.pieces[size_t(id)] = is_special ? "" : content;
    vocabulary_.added_tokens.emplace_back(content, int32_t(id));
    return absl::OkStatus();
  }

  // For files without a list of special tokens: they are the pieces that are neither a byte nor the
  // result of a merge.
  absl::Status AddSpecialTokens() {
    std::vector<bool> is_made(vocabulary_.pieces.size());
    for (const int32_t id : vocabulary_.byte_ids) is_made[size_t(id)] = true;
    for (const BpeMerge& merge : vocabulary_.merges) {
      is_made[size_t(merge.merged)] = true;
    }
    for (const auto& [name, id] : ids_) {
      if (is_made[size_t(id)]) continue;
      RETURN_IF_ERROR(AddToken(name, id, /*is_special=*/true));
    }
    return absl::OkStatus();
  }

  ByteLevelVocabulary Finish(std::string hash) && {
    vocabulary_.hash = std::move(hash);
    return std::move(vocabulary_);
  }

 private:
  absl::Status Fault(std::string_view problem) const {
    return absl::InvalidArgumentError(StrCat(source_, ": ", problem));
  }

  absl::Status CheckId(std::string_view name, int64_t id) const {
    const auto vocab_size = int64_t(vocabulary_.pieces.size());
    if (id >= 0 && id < vocab_size) return absl::OkStatus();
    return Fault(StrCat("piece \"", name, "\" has id ", id,
                        ", must be below config.json's vocab_size, ", vocab_size));
  }

  absl::Status AddPiece(const std::string& name, const json& id) {
    if (!id.is_number_integer()) return Fault(StrCat("piece \"", name, "\" has no integer id"));
    const int64_t number = id.get<int64_t>();
    RETURN_IF_ERROR(CheckId(name, number));
    std::string& name_of_id = names_[size_t(number)];
    if (!name_of_id.empty()) {
      return Fault(StrCat("id ", number, " belongs to \"", name_of_id, "\" and to \"", name, "\""));
    }
    name_of_id = name;
    // A piece outside the alphabet may be a special token, which has no bytes.
    vocabulary_.pieces[size_t(number)] = alphabet_.BytesOf(name).value_or("");
    ids_.emplace(name, int32_t(number));
    return absl::OkStatus();
  }

  const ByteAlphabet alphabet_;
  std::string source_;
  std::vector<std::string> names_;  // by id, as the file writes them
  ByteLevelVocabulary vocabulary_;
  absl::flat_hash_map<std::string, int32_t> ids_;
};

std::string HashOf(std::initializer_list<std::string_view> files) {
  Sha256 hash;
  for (const std::string_view file : files) hash.Add(file);
  return hash.ShortHex();
}

// One merge a line, "left right", after a line "#version".
absl::Status AddMergeLines(std::string_view text, std::string_view path, Builder* builder) {
  for (int line_number = 1; !text.empty(); ++line_number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::string where = StrCat(path, ": line ", line_number);
    const size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != line.npos) {
      return absl::InvalidArgumentError(StrCat(where, " is \"", line.substr(0, 80),
                                               "\", must be two pieces separated by a space"));
    }
    RETURN_IF_ERROR(builder->AddMerge(line.substr(0, space), line.substr(space + 1), where));
  }
  return absl::OkStatus();
}

absl::StatusOr<ByteLevelVocabulary> ReadVocabAndMerges(const std::string& directory,
                                                       int vocab_size) {
  const std::string vocab_path = directory + "/vocab.json", merges_path = directory + "/merges.txt";
  ASSIGN_OR_RETURN(const std::string vocab, ReadWholeFile(vocab_path));
  const absl::StatusOr<std::string> merges = ReadWholeFile(merges_path);
  if (absl::IsNotFound(merges.status())) {
    return absl::InvalidArgumentError(
        StrCat(vocab_path, " exists, but ", merges_path, " does not"));
  }
  RETURN_IF_ERROR(merges.status());
  ASSIGN_OR_RETURN(const json names, ParseJson(vocab, vocab_path));
  if (!names.is_object()) return absl::InvalidArgumentError(vocab_path + ": must be an object");

  Builder builder(vocab_path, vocab_size);
  RETURN_IF_ERROR(builder.AddPieces(names));
  RETURN_IF_ERROR(AddMergeLines(*merges, merges_path, &builder));
  RETURN_IF_ERROR(builder.AddSpecialTokens());
  return std::move(builder).Finish(HashOf({vocab, *merges}));
}

// Each merge is "left right" or ["left", "right"].
absl::Status AddMergeArray(const json& merges, const std::string& path, Builder* builder) {
  for (size_t i = 0; i < merges.size(); ++i) {
    const json& merge = merges[i];
    const std::string where = StrCat(path, ": model: merges[", i, "]");
    std::string left, right;
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      left = text.substr(0, space);
      if (space != text.npos) right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    if (left.empty() || right.empty()) {
      return absl::InvalidArgumentError(where + ": must be two pieces");
    }
    RETURN_IF_ERROR(builder->AddMerge(left, right, where));
  }
  return absl::OkStatus();
}

absl::Status AddTokens(const json& tokens, const std::string& path, Builder* builder) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    JsonFields fields(tokens[i], StrCat(path, ": added_tokens[", i, "]"));
    const std::string content = fields.Text("content");
    const int64_t id = fields.Int("id", 0, kMaxId);
    const bool is_special = fields.Bool("special", false);
    for (const std::string_view name : {"single_word", "lstrip", "rstrip"}) {
      if (fields.Bool(name, false)) fields.Fail(StrCat(name, " is true, must be false"));
    }
    RETURN_IF_ERROR(fields.status());
    RETURN_IF_ERROR(builder->AddToken(content, id, is_special));
  }
  return absl::OkStatus();
}

void RefuseOtherType(std::string_view wanted, JsonFields* fields) {
  const std::string type = fields->Text("type");
  if (type != wanted) fields->Fail(StrCat("type is \"", type, "\", must be \"", wanted, "\""));
}

// Refuses normalizers, pre-tokenizers and post-processors that would change the ids.
absl::Status CheckPipeline(const std::string& path, JsonFields* fields) {
  if (fields->Has("normalizer")) fields->Fail("normalizer must be null");
  const json* const pre = fields->Object("pre_tokenizer");
  if (pre == nullptr) fields->Fail("pre_tokenizer is missing, must be ByteLevel");
  const json* const post = fields->Object("post_processor");
  RETURN_IF_ERROR(fields->status());

  JsonFields pre_fields(*pre, path + ": pre_tokenizer");
  RefuseOtherType("ByteLevel", &pre_fields);
  if (pre_fields.Bool("add_prefix_space", true)) {
    pre_fields.Fail("add_prefix_space is true, must be false");
  }
  if (!pre_fields.Bool("use_regex", true)) pre_fields.Fail("use_regex is false, must be true");
  if (!pre_fields.status().ok() || post == nullptr) return pre_fields.status();

  // Other post-processors add tokens. BOS comes from tokenizer_config.json's add_bos_token.
  JsonFields post_fields(*post, path + ": post_processor");
  RefuseOtherType("ByteLevel", &post_fields);
  return post_fields.status();
}

void RefuseOtherMerging(JsonFields* model) {
  RefuseOtherType("BPE", model);
  if (model->Number("dropout", 0, 1, 0.0) != 0) model->Fail("dropout must be null or 0");
  for (const std::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model->Text(name, "").empty()) model->Fail(StrCat(name, " must be null or empty"));
  }
  for (const std::string_view name : {"ignore_merges", "byte_fallback"}) {
    if (model->Bool(name, false)) model->Fail(StrCat(name, " is true, must be false"));
  }
}

absl::StatusOr<ByteLevelVocabulary> ReadTokenizerJson(const std::string& path,
                                                      const std::string& text, int vocab_size) {
  ASSIGN_OR_RETURN(const json parsed, ParseJson(text, path));
  JsonFields fields(parsed, path);
  RETURN_IF_ERROR(CheckPipeline(path, &fields));
  const json* const model = fields.Object("model");
  const json* const tokens = fields.Array("added_tokens");
  if (model == nullptr) fields.Fail("model is missing");
  RETURN_IF_ERROR(fields.status());

  JsonFields model_fields(*model, path + ": model");
  RefuseOtherMerging(&model_fields);
  const json* const names = model_fields.Object("vocab");
  const json* const merges = model_fields.Array("merges");
  if (names == nullptr || merges == nullptr) model_fields.Fail("must have vocab and merges");
  RETURN_IF_ERROR(model_fields.status());

  Builder builder(path, vocab_size);
  RETURN_IF_ERROR(builder.AddPieces(*names));
  RETURN_IF_ERROR(AddMergeArray(*merges, path, &builder));
  if (tokens != nullptr) RETURN_IF_ERROR(AddTokens(*tokens, path, &builder));
  return std::move(builder).Finish(HashOf({text}));
}

}  // namespace

absl::StatusOr<ByteLevelVocabulary> ReadByteLevelVocabulary(const std::string& directory,
                                                            int vocab_size) {
  const std::string path = directory + "/tokenizer.json";
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (text.ok()) return ReadTokenizerJson(path, *text, vocab_size);
  if (!absl::IsNotFound(text.status())) return text.status();
  return ReadVocabAndMerges(directory, vocab_size);
}

}  // namespace lssar
