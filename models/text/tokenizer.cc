#include "models/text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

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

// The tokens of a tokenizer.json by id: of its model, and added_tokens.
absl::StatusOr<std::map<int64_t, std::string>> ReadTokensOfJson(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::map<int64_t, std::string> tokens;
  const auto add = [&](const json& id, const json& content) {
    if (id.is_number_integer() && content.is_string()) {
      tokens[id.get<int64_t>()] = content.get<std::string>();
    }
  };
  const auto visit = [&](const std::string& name, const json& value) {
    if (name == "model" && value.is_object() && value.contains("vocab")) {
      const json& vocabulary = value["vocab"];
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
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachJsonMember(text, path, visit));
  return tokens;
}

// tokenizer.model is read where tokenizer.json stands beside it: the two must be one vocabulary.
// `beside`: the tokens that are read with tokenizer.model.
absl::Status CheckSameTokens(const std::string& directory, int vocab_size,
                             const std::vector<AddedToken>& beside) {
  const std::string path = directory + "/tokenizer.json";
  if (!std::filesystem::exists(path)) return absl::OkStatus();
  const std::string model_path = directory + "/tokenizer.model";
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(model_path));
  ASSIGN_OR_RETURN(const SentencePieceFile file,
                   ParseSentencePieceFile(bytes, model_path, vocab_size));
  ASSIGN_OR_RETURN(const auto tokens, ReadTokensOfJson(path));
  const auto fault = [&](int64_t id, std::string_view token, std::string_view other) {
    return absl::InvalidArgumentError(
        StrCat(directory, ": tokenizer.model and tokenizer.json are not one tokenizer: token ", id,
               " is ", Quote(token), " in tokenizer.json, and ", other,
               " in tokenizer.model; remove the file that the model was not trained with"));
  };
  const auto num_pieces = std::ssize(file.pieces);
  for (const auto& [id, token] : tokens) {
    if (id < 0 || id >= vocab_size) continue;
    if (id < num_pieces) {
      const std::string& piece = file.pieces[size_t(id)].text;
      if (piece != token) return fault(id, token, Quote(piece));
    } else if (std::ranges::find(beside, token, &AddedToken::content) == beside.end()) {
      return fault(id, token, "no token");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory,
                                                         int vocab_size) {
  const std::string model_path = directory + "/tokenizer.model";
  if (std::filesystem::exists(std::filesystem::symlink_status(model_path))) {
    ASSIGN_OR_RETURN(const TokensBeside beside, ReadTokensBeside(directory));
    ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> sentence_piece,
                     LoadSentencePieceTokenizer(model_path, vocab_size, beside.tokens));
    RETURN_IF_ERROR(CheckSameTokens(directory, vocab_size, beside.tokens));
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
    RETURN_IF_ERROR(vocabulary.status());
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeBpeTokenizer(*std::move(vocabulary));
    if (tokenizer.ok()) return tokenizer;
    return absl::InvalidArgumentError(
        StrCat(directory, ": tokenizer: ", tokenizer.status().message()));
  }
  return absl::NotFoundError(StrCat(directory, ": no file of a tokenizer"));
}

}  // namespace lssar
