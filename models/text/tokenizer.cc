#include "models/text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/json_fields.h"
#include "models/text/bpe_files.h"
#include "models/text/bpe_tokenizer.h"
#include "models/text/sentence_piece_file.h"
#include "models/text/sentence_piece_tokenizer.h"
#include "models/text/tokens_beside.h"

namespace lssar {

using nlohmann::json;

namespace {

// Moves the complete characters from the front of `pending` to the end of `text`. With `at_end`
// nothing stays: an unfinished character becomes one U+FFFD.
void MoveCompleteCharacters(bool at_end, std::string* pending, std::string* text) {
  std::string_view rest = *pending;
  while (!rest.empty()) {
    const Utf8Unit unit = NextUtf8(rest);
    if (unit.kind == Utf8Kind::kUnfinished && !at_end) break;
    *text +=
        unit.kind == Utf8Kind::kCharacter ? rest.substr(0, unit.num_bytes) : kReplacementCharacter;
    rest.remove_prefix(unit.num_bytes);
  }
  pending->erase(0, pending->size() - rest.size());
}

}  // namespace

absl::Status EncodingStopped() { return absl::CancelledError("the encoding was stopped"); }

absl::Status CheckTokenizerText(std::string_view text, absl::FunctionRef<bool()> should_stop) {
  constexpr size_t kBytesPerPoll = size_t{1} << 16;
  for (size_t begin = 0; begin < text.size();) {
    if (should_stop()) return EncodingStopped();
    size_t end = std::min(begin + kBytesPerPoll, text.size());
    // Not within a character, which has at most three bytes behind its first.
    for (int left = 3; left > 0 && end < text.size() && (uint8_t(text[end]) & 0xC0) == 0x80;
         --left) {
      --end;
    }
    if (FindInvalidUtf8(text.substr(begin, end - begin))) return CheckUtf8(text);
    begin = end;
  }
  return absl::OkStatus();
}

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, bool continues_text,
                             bool skips_special_tokens)
    : tokenizer_(tokenizer),
      at_start_(!continues_text && tokenizer->AddsDummyPrefix()),
      skips_special_tokens_(skips_special_tokens) {}

std::string StreamDecoder::Push(int32_t id) {
  std::string_view bytes = tokenizer_->PieceBytes(id);
  const std::string_view name =
      skips_special_tokens_ ? std::string_view() : tokenizer_->SpecialTokenName(id);
  if (at_start_ && !(bytes.empty() && name.empty())) {
    at_start_ = false;
    if (bytes.starts_with(' ')) bytes.remove_prefix(1);
  }
  if (bytes.empty()) bytes = name;
  pending_ += bytes;
  std::string text;
  MoveCompleteCharacters(/*at_end=*/false, &pending_, &text);
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  MoveCompleteCharacters(/*at_end=*/true, &pending_, &text);
  return text;
}

std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   bool skips_special_tokens) {
  StreamDecoder decoder(&tokenizer, /*continues_text=*/false, skips_special_tokens);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

namespace {

// What a tokenizer.json beside a tokenizer.model says.
struct OtherTokenizer {
  std::map<int64_t, std::string> tokens;  // by id: of its model, and added_tokens
  bool is_bpe = false;
  json normalizer, pre_tokenizer;
};

absl::StatusOr<OtherTokenizer> ReadOtherTokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  OtherTokenizer other;
  const auto add = [&](const json& id, const json& content) {
    if (id.is_number_integer() && content.is_string()) {
      other.tokens[id.get<int64_t>()] = content.get<std::string>();
    }
  };
  const auto visit = [&](const std::string& name, const json& value) {
    if (name == "model" && value.is_object() && value.contains("vocab")) {
      const json& vocabulary = value["vocab"];
      const json type = value.value("type", json());
      other.is_bpe = vocabulary.is_object() && (type.is_null() || type == "BPE");
      if (vocabulary.is_object()) {
        for (const auto& [content, id] : vocabulary.items()) add(id, content);
      }
      for (size_t i = 0; vocabulary.is_array() && i < vocabulary.size(); ++i) {  // unigram
        const json& entry = vocabulary[i];
        if (entry.is_array() && !entry.empty()) add(i, entry[0]);
      }
    } else if (name == "added_tokens" && value.is_array()) {
      for (const json& token : value) {
        if (token.is_object()) add(token.value("id", json()), token.value("content", json()));
      }
    } else if (name == "normalizer") {
      other.normalizer = value;
    } else if (name == "pre_tokenizer") {
      other.pre_tokenizer = value;
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachJsonMember(text, path, visit));
  return other;
}

std::string TypeOf(const json& step) {
  const json type = step.is_object() ? step.value("type", json()) : json();
  return type.is_string() ? type.get<std::string>() : "";
}

// The steps of a Sequence, or the step alone; none for null.
std::vector<json> StepsOf(const json& pipeline, const char* name) {
  if (pipeline.is_null()) return {};
  if (TypeOf(pipeline) != "Sequence") return {pipeline};
  const json steps = pipeline.value(name, json::array());
  return {steps.begin(), steps.end()};
}

// What transformers makes of a tokenizer.model that is no BPE. Empty: `other` is that; else the
// field that is not.
std::string_view FieldOfOtherRules(const OtherTokenizer& other, bool adds_dummy_prefix) {
  for (const json& step : StepsOf(other.normalizer, "normalizers")) {
    const std::string type = TypeOf(step);
    const bool joins_spaces =
        type == "Replace" && step.value("pattern", json()) == json{{"Regex", " {2,}"}};
    if (type != "Precompiled" && type != "Strip" && !joins_spaces) return "normalizer";
  }
  std::vector<json> steps = StepsOf(other.pre_tokenizer, "pretokenizers");
  if (!steps.empty() && TypeOf(steps.front()) == "WhitespaceSplit") steps.erase(steps.begin());
  if (steps.size() != 1 || TypeOf(steps.front()) != "Metaspace") return "pre_tokenizer";
  const json& metaspace = steps.front();
  const bool is_never = metaspace.contains("prepend_scheme")
                            ? metaspace["prepend_scheme"] == "never"
                            : metaspace.value("add_prefix_space", json()) == false;
  return is_never == adds_dummy_prefix ? "pre_tokenizer" : "";
}

// Whether tokenizer.json is read, not the tokenizer.model beside it: transformers' tokenizers read
// it, and its rules need not be the other's ("legacy" ones put a space behind special tokens too).
// The two must have one vocabulary. A unigram tokenizer.json is not read: its rules must be
// SentencePiece's. `beside`: the tokens that are read with tokenizer.model.
absl::StatusOr<bool> PrefersTokenizerJson(const std::string& directory, int vocab_size,
                                          std::vector<AddedToken> beside) {
  const std::string path = directory + "/tokenizer.json";
  if (!std::filesystem::exists(path)) return false;
  const std::string model_path = directory + "/tokenizer.model";
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(model_path));
  ASSIGN_OR_RETURN(const SentencePieceFile file,
                   ParseSentencePieceFile(bytes, model_path, vocab_size));
  ASSIGN_OR_RETURN(const OtherTokenizer other, ReadOtherTokenizer(path));
  if (!other.is_bpe) RETURN_IF_ERROR(GiveIds(model_path, file, vocab_size, &beside));
  const auto fault = [&](std::string_view problem) {
    return absl::InvalidArgumentError(
        StrCat(directory, ": tokenizer.model and tokenizer.json are not one tokenizer: ", problem,
               "; remove the file that the model was not trained with"));
  };
  const auto token_fault = [&](int64_t id, std::string_view token, std::string_view mine) {
    return fault(StrCat("token ", id, " is ", Quote(token), " in tokenizer.json, and ", mine,
                        " in tokenizer.model"));
  };
  absl::flat_hash_map<std::string, int64_t> ids_beside;
  for (const AddedToken& token : beside) ids_beside.emplace(token.content, token.id);
  const auto num_pieces = std::ssize(file.pieces);
  for (const auto& [id, token] : other.tokens) {
    if (id < 0 || id >= vocab_size) continue;
    if (id < num_pieces) {
      const std::string& piece = file.pieces[size_t(id)].text;
      if (piece != token) return token_fault(id, token, Quote(piece));
    } else if (!other.is_bpe) {
      const auto mine = ids_beside.find(token);
      if (mine == ids_beside.end()) return token_fault(id, token, "no token");
      if (mine->second != id) return token_fault(id, token, StrCat("token ", mine->second));
    }
  }
  if (other.is_bpe) return true;
  const std::string_view field = FieldOfOtherRules(other, file.add_dummy_prefix);
  if (field.empty()) return false;
  return fault(StrCat(field, " of tokenizer.json is ",
                      QuoteJson(field == "normalizer" ? other.normalizer : other.pre_tokenizer),
                      ", which is not what tokenizer.model does"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory,
                                                         int vocab_size) {
  const std::string model_path = directory + "/tokenizer.model";
  const bool has_model = std::filesystem::exists(std::filesystem::symlink_status(model_path));
  bool prefers_json = false;
  TokensBeside beside;
  if (has_model) {
    ASSIGN_OR_RETURN(beside, ReadTokensBeside(directory));
    ASSIGN_OR_RETURN(prefers_json, PrefersTokenizerJson(directory, vocab_size, beside.tokens));
  }
  if (has_model && !prefers_json) {
    ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> sentence_piece,
                     LoadSentencePieceTokenizer(model_path, vocab_size, beside.tokens));
    if (beside.add_prefix_space == false && sentence_piece->AddsDummyPrefix()) {
      return absl::InvalidArgumentError(
          StrCat(directory,
                 "/tokenizer_config.json: add_prefix_space is false, but tokenizer.model "
                 "puts a space before each text; it must be true or absent"));
    }
    return sentence_piece;
  }
  for (const auto read : {ReadTokenizerJson, ReadVocabularyAndMerges, ReadTiktokenFile}) {
    absl::StatusOr<BpeVocabulary> vocabulary = read(directory, vocab_size);
    if (absl::IsNotFound(vocabulary.status())) continue;
    if (!vocabulary.ok() && prefers_json) {
      return absl::Status(vocabulary.status().code(),
                          StrCat(vocabulary.status().message(),
                                 " (tokenizer.json comes before tokenizer.model, whose ids may be "
                                 "others; only where it is removed tokenizer.model is read)"));
    }
    RETURN_IF_ERROR(vocabulary.status());
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeBpeTokenizer(*std::move(vocabulary));
    if (tokenizer.ok()) return tokenizer;
    return absl::InvalidArgumentError(
        StrCat(directory, ": tokenizer: ", tokenizer.status().message()));
  }
  return absl::NotFoundError(StrCat(directory, ": no file of a tokenizer"));
}

}  // namespace lssar
