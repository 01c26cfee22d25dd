// The files of GPT-2 and of tiktoken; tokenizer_json.cc has the third form.
#include "models/text/bpe_files.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/json_fields.h"
#include "models/text/tokens_beside.h"
#include "models/text/vocabulary_builder.h"

namespace lssar {
namespace {

using nlohmann::json;

// Takes the first line off `text`, without its end.
std::string_view TakeLine(std::string_view* text) {
  const size_t end = text->find('\n');
  std::string_view line = text->substr(0, end);
  text->remove_prefix(end == text->npos ? text->size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// One merge a line, "left right", after a line "#version".
absl::Status AddMergeLines(std::string_view text, std::string_view path,
                           VocabularyBuilder* builder) {
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = TakeLine(&text);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::string where = StrCat(path, ": line ", line_number);
    const size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != line.npos) {
      return absl::InvalidArgumentError(
          StrCat(where, " is ", Quote(line), ", must be two pieces separated by a space"));
    }
    RETURN_IF_ERROR(builder->AddMerge(line.substr(0, space), line.substr(space + 1), where));
  }
  return absl::OkStatus();
}

// A tokenizer_config.json that says what these two files do not.
absl::Status CheckIsGpt2(const TokensBeside& beside, const std::string& directory) {
  const std::string path = directory + "/tokenizer_config.json";
  const std::string& name = beside.tokenizer_class;
  if (!name.empty() && name != "GPT2Tokenizer" && name != "GPT2TokenizerFast") {
    return absl::InvalidArgumentError(
        StrCat(path, ": tokenizer_class is ", Quote(name),
               "; without a tokenizer.json, which transformers' save_pretrained writes, it must be "
               "\"GPT2Tokenizer\" or absent"));
  }
  if (beside.add_prefix_space == true) {
    return absl::InvalidArgumentError(
        StrCat(path,
               ": add_prefix_space is true; without a tokenizer.json, which transformers' "
               "save_pretrained writes, it must be false or absent"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BpeVocabulary> ReadGpt2Files(const std::string& directory,
                                            const std::string& vocab_path,
                                            const std::string& merges_path, int vocab_size) {
  ASSIGN_OR_RETURN(const std::string vocab, ReadWholeFile(vocab_path));
  ASSIGN_OR_RETURN(TokensBeside beside, ReadTokensBeside(directory));
  RETURN_IF_ERROR(CheckIsGpt2(beside, directory));
  const absl::StatusOr<std::string> merges = ReadWholeFile(merges_path);
  if (absl::IsNotFound(merges.status())) {
    return absl::InvalidArgumentError(
        StrCat(vocab_path, " exists, but ", merges_path, " does not"));
  }
  RETURN_IF_ERROR(merges.status());
  ASSIGN_OR_RETURN(const json names, ParseJson(vocab, vocab_path));
  if (!names.is_object()) return absl::InvalidArgumentError(vocab_path + ": must be an object");

  VocabularyBuilder builder(vocab_path, vocab_size, BpeModel::Alphabet::kBytes);
  RETURN_IF_ERROR(AddPieces(names, vocab_path, &builder));
  builder.FindSymbols();
  RETURN_IF_ERROR(AddMergeLines(*merges, merges_path, &builder));
  RETURN_IF_ERROR(builder.AddSpecialTokens());
  absl::flat_hash_set<int32_t> special_ids;
  for (const AddedToken& token : builder.Get()->added_tokens) special_ids.insert(token.id);
  RETURN_IF_ERROR(GiveIds(
      vocab_path, int64_t(names.size()), builder.NumIds(), vocab_size,
      [&](std::string_view content) { return builder.IdOf(content); }, &beside.tokens));
  for (AddedToken& token : beside.tokens) {
    const bool is_known = special_ids.contains(token.id) && builder.IdOf(token.content) == token.id;
    if (!is_known) RETURN_IF_ERROR(builder.AddToken(std::move(token)));
  }
  builder.Get()->pre_tokenizer.push_back({.pattern = std::string(kGpt2Pattern)});
  return std::move(builder).Finish(HashOfFiles({vocab, *merges}));
}

struct Encoding {
  std::string_view name;
  std::string_view pattern;
  std::vector<std::pair<std::string_view, int32_t>> special_tokens;
};

// Source  tiktoken_ext/openai_public.py of tiktoken 0.14
const std::vector<Encoding>& Encodings() {
  static const std::vector<Encoding> encodings{
      {"gpt2", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
      {"r50k_base", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
      {"p50k_base", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
      {"cl100k_base",
       kCl100kPattern,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base", kO200kPattern, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
  };
  return encodings;
}

// One piece a line: its bytes in base64, a space, its id.
absl::Status AddRankLines(std::string_view text, const std::string& path,
                          VocabularyBuilder* builder) {
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = TakeLine(&text);
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    int64_t id = -1;
    const char* const end = line.data() + line.size();
    const char* const digits = std::min(line.data() + space + 1, end);
    std::string bytes;
    const bool is_base64 =
        absl::Base64Unescape(absl::string_view(line.data(), space), &bytes) && !bytes.empty();
    if (!is_base64 || std::from_chars(digits, end, id).ptr != end || digits == end) {
      return absl::InvalidArgumentError(
          StrCat(path, ": line ", line_number, " must be a piece in base64, a space and an id"));
    }
    RETURN_IF_ERROR(builder->AddBytes(bytes, id));
  }
  return absl::OkStatus();
}

// What a tokenizer.tiktoken does not say.
absl::Status ReadTiktokenConfig(const std::string& directory, std::string* pattern,
                                VocabularyBuilder* builder) {
  ASSIGN_OR_RETURN(TokensBeside beside, ReadTokensBeside(directory));
  if (beside.tiktoken_pattern.empty()) {
    return absl::InvalidArgumentError(StrCat(directory, "/tokenizer.tiktoken needs ", directory,
                                             "/tokenizer_config.json with a tiktoken_pattern"));
  }
  *pattern = std::move(beside.tiktoken_pattern);
  for (const Encoding& encoding : Encodings()) {
    if (*pattern == encoding.name) *pattern = encoding.pattern;
  }
  for (AddedToken& token : beside.tokens) {
    if (token.id == kNoId) {
      return absl::InvalidArgumentError(StrCat(directory, "/tokenizer_config.json: the token ",
                                               Quote(token.content),
                                               " has no id beside tokenizer.tiktoken; write it "
                                               "into added_tokens_decoder, or remove it"));
    }
    RETURN_IF_ERROR(builder->AddToken(std::move(token)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BpeVocabulary> ReadVocabularyAndMerges(const std::string& directory,
                                                      int vocab_size) {
  absl::StatusOr<BpeVocabulary> vocabulary =
      ReadGpt2Files(directory, directory + "/vocab.json", directory + "/merges.txt", vocab_size);
  if (!absl::IsNotFound(vocabulary.status())) return vocabulary;
  return ReadGpt2Files(directory, directory + "/encoder.json", directory + "/vocab.bpe",
                       vocab_size);
}

absl::StatusOr<BpeVocabulary> ReadTiktokenFile(const std::string& directory, int vocab_size) {
  std::string path;
  absl::StatusOr<std::string> text;
  const Encoding* encoding = nullptr;
  for (const Encoding& known : Encodings()) {
    path = StrCat(directory, "/", known.name, ".tiktoken");
    encoding = &known;
    text = ReadWholeFile(path);
    if (!absl::IsNotFound(text.status())) break;
  }
  if (absl::IsNotFound(text.status())) {
    path = directory + "/tokenizer.tiktoken";
    encoding = nullptr;
    text = ReadWholeFile(path);
  }
  RETURN_IF_ERROR(text.status());

  VocabularyBuilder builder(path, vocab_size, BpeModel::Alphabet::kBytes);
  RETURN_IF_ERROR(AddRankLines(*text, path, &builder));
  builder.FindSymbols();
  if (const std::optional<int> byte = builder.FirstByteWithoutPiece()) {
    return absl::InvalidArgumentError(
        StrCat(path, ": has no piece for byte ", *byte, "; tiktoken encodes no text with it"));
  }
  builder.AddAllMerges();
  builder.MakeAllPiecesWords();  // tiktoken looks a word up before it merges
  std::string pattern;
  if (encoding == nullptr) {
    RETURN_IF_ERROR(ReadTiktokenConfig(directory, &pattern, &builder));
  } else {
    pattern = encoding->pattern;
    for (const auto& [content, id] : encoding->special_tokens) {
      RETURN_IF_ERROR(builder.AddToken({.content = std::string(content), .id = id}));
    }
  }
  builder.Get()->pre_tokenizer.push_back({.pattern = std::move(pattern)});
  return std::move(builder).Finish(HashOfFiles({*text}));
}

}  // namespace lssar
