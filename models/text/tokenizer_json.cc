// ReadTokenizerJson (bpe_files.h).
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "models/json_fields.h"
#include "models/text/bpe_files.h"
#include "models/text/tokens_beside.h"
#include "models/text/vocabulary_builder.h"

namespace lssar {
namespace {

using nlohmann::json;
using StepKind = PreTokenizerStep::Kind;

constexpr int64_t kMaxId = 1 << 30;
// transformers' classes that take add_prefix_space from tokenizer_config.json alone, false where it
// is absent; the others take it from tokenizer.json. Each also ends in "Fast".
constexpr std::array<std::string_view, 10> kNoSpaceClasses = {
    "GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer",   "CodeGenTokenizer", "RobertaTokenizer",
    "BartTokenizer", "DebertaTokenizer", "WhisperTokenizer", "LEDTokenizer",     "CohereTokenizer"};
constexpr size_t kMaxSteps = 64;  // of a pipeline: each takes some of the stack

// What the fields of a tokenizer.json say together.
class Reader {
 public:
  Reader(std::string directory, std::string path)
      : directory_(std::move(directory)), path_(std::move(path)) {}

  absl::StatusOr<BpeVocabulary> Read(const std::string& text, int vocab_size) {
    ASSIGN_OR_RETURN(const json parsed, ParseJson(text, path_));
    JsonFields fields(parsed, path_);
    fields.RejectOthers({"version", "truncation", "padding", "added_tokens", "normalizer",
                         "pre_tokenizer", "post_processor", "decoder", "model"});
    for (const std::string_view name : {"truncation", "padding"}) {
      if (fields.Has(name)) fields.Fail(StrCat(name, " must be null"));
    }
    const json* const normalizer = fields.Object("normalizer");
    const json* const pre_tokenizer = fields.Object("pre_tokenizer");
    const json* const post_processor = fields.Object("post_processor");
    const json* const decoder = fields.Object("decoder");
    const json* const model = fields.Object("model");
    const json* const tokens = fields.Array("added_tokens");
    if (model == nullptr) fields.Fail("model is missing");
    RETURN_IF_ERROR(fields.status());

    if (normalizer != nullptr) RETURN_IF_ERROR(ReadNormalizer(*normalizer, "normalizer"));
    if (pre_tokenizer != nullptr) {
      RETURN_IF_ERROR(ReadPreTokenizer(*pre_tokenizer, "pre_tokenizer"));
    }
    if (post_processor != nullptr) {
      RETURN_IF_ERROR(CheckPostProcessor(*post_processor, "post_processor"));
    }
    RETURN_IF_ERROR(ReadDecoder(decoder));

    VocabularyBuilder builder(
        path_, vocab_size,
        is_byte_level_ ? BpeModel::Alphabet::kBytes : BpeModel::Alphabet::kCharacters);
    RETURN_IF_ERROR(ReadModel(*model, &builder));
    if (tokens != nullptr) RETURN_IF_ERROR(ReadAddedTokens(*tokens, &builder));
    RETURN_IF_ERROR(AddTokensBeside(&builder));
    builder.Get()->normalizer = std::move(normalizer_);
    builder.Get()->pre_tokenizer = std::move(pre_tokenizer_);
    builder.Get()->adds_dummy_prefix = adds_dummy_prefix_;
    builder.Get()->token_before_text = token_before_text_;
    return std::move(builder).Finish(HashOfFiles({text}));
  }

 private:
  JsonFields FieldsOf(const json& object, std::string_view where) const {
    return JsonFields(object, StrCat(path_, ": ", where));
  }

  // Calls `read` with each object of the array `name`.
  template <typename ReadOne>
  absl::Status ForEach(std::string_view name, std::string_view where, JsonFields* fields,
                       ReadOne read) {
    const json* const list = fields->Array(name);
    if (list == nullptr) fields->Fail(StrCat(name, " is missing"));
    RETURN_IF_ERROR(fields->status());
    for (size_t i = 0; i < list->size(); ++i) {
      RETURN_IF_ERROR(read((*list)[i], StrCat(where, ": ", name, "[", i, "]")));
    }
    return absl::OkStatus();
  }

  static void RejectType(std::string_view type, std::string_view choices, JsonFields* fields) {
    fields->Fail(StrCat("type is ", Quote(type), ", must be ", choices));
  }

  static void RejectMany(size_t num_steps, JsonFields* fields) {
    if (num_steps > kMaxSteps) fields->Fail(StrCat("is step ", num_steps, ", at most ", kMaxSteps));
  }

  // What a step looks for or puts into each text.
  static void CheckSize(std::string_view name, std::string_view text, JsonFields* fields) {
    if (text.size() <= kMaxTokenBytes) return;
    fields->Fail(StrCat(name, " has ", text.size(), " bytes, must have at most ", kMaxTokenBytes));
  }

  // The text of {"String": text}.
  static std::string LiteralPattern(JsonFields* fields) {
    const json* const pattern = fields->Object("pattern");
    if (pattern == nullptr) fields->Fail("pattern is missing");
    if (!fields->status().ok()) return "";
    JsonFields pattern_fields(*pattern, "pattern");
    pattern_fields.RejectOthers({"String"});
    std::string text = pattern_fields.Text("String");
    if (text.empty()) pattern_fields.Fail("String is empty");
    CheckSize("String", text, &pattern_fields);
    if (!pattern_fields.status().ok()) fields->Fail(StrCat(pattern_fields.status().message()));
    return text;
  }

  absl::Status ReadNormalizer(const json& object, const std::string& where) {
    JsonFields fields = FieldsOf(object, where);
    const std::string type = fields.Text("type");
    if (type == "Sequence") {
      fields.RejectOthers({"type", "normalizers"});
      return ForEach("normalizers", where, &fields, [&](const json& one, const std::string& at) {
        return ReadNormalizer(one, at);
      });
    }
    NormalizerStep step;
    if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
      fields.RejectOthers({"type"});
      step.kind = type == "NFC"    ? NormalizerStep::Kind::kNfc
                  : type == "NFD"  ? NormalizerStep::Kind::kNfd
                  : type == "NFKC" ? NormalizerStep::Kind::kNfkc
                                   : NormalizerStep::Kind::kNfkd;
    } else if (type == "Prepend") {
      fields.RejectOthers({"type", "prepend"});
      step = {.kind = NormalizerStep::Kind::kPrepend, .from = "", .to = fields.Text("prepend")};
      CheckSize("prepend", step.to, &fields);
    } else if (type == "Replace") {
      fields.RejectOthers({"type", "pattern", "content"});
      step = {.kind = NormalizerStep::Kind::kReplace,
              .from = LiteralPattern(&fields),
              .to = fields.Text("content")};
      CheckSize("content", step.to, &fields);
    } else {
      RejectType(type, "one of NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence", &fields);
    }
    normalizer_.push_back(std::move(step));
    RejectMany(normalizer_.size(), &fields);
    return fields.status();
  }

  absl::Status ReadPreTokenizer(const json& object, const std::string& where) {
    JsonFields fields = FieldsOf(object, where);
    const std::string type = fields.Text("type");
    if (is_byte_level_) fields.Fail("follows ByteLevel, which must be the last");
    if (type == "Sequence") {
      fields.RejectOthers({"type", "pretokenizers"});
      return ForEach("pretokenizers", where, &fields, [&](const json& one, const std::string& at) {
        return ReadPreTokenizer(one, at);
      });
    }
    if (type == "ByteLevel") {
      fields.RejectOthers({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      is_byte_level_ = true;
      byte_level_adds_space_ = fields.Bool("add_prefix_space", true);
      if (byte_level_adds_space_) {
        pre_tokenizer_.push_back({.kind = StepKind::kAddSpace});
      }
      if (fields.Bool("use_regex", true)) AddPattern(kGpt2Pattern);
    } else if (type == "Split") {
      ReadSplit(&fields);
    } else if (type == "Digits") {
      fields.RejectOthers({"type", "individual_digits"});
      pre_tokenizer_.push_back({.kind = fields.Bool("individual_digits", false)
                                            ? StepKind::kSingleDigits
                                            : StepKind::kDigitRuns});
    } else if (type == "Metaspace") {
      ReadMetaspace(&fields);
    } else {
      RejectType(type, "one of ByteLevel, Split, Digits, Metaspace, Sequence", &fields);
    }
    RejectMany(pre_tokenizer_.size(), &fields);
    return fields.status();
  }

  void AddPattern(std::string_view pattern) {
    pre_tokenizer_.push_back({.kind = StepKind::kPattern, .pattern = std::string(pattern)});
  }

  void ReadSplit(JsonFields* fields) {
    fields->RejectOthers({"type", "pattern", "behavior", "invert"});
    const std::string behavior = fields->Text("behavior");
    const bool invert = fields->Bool("invert", false);
    const json* const pattern = fields->Object("pattern");
    // Gemma's: behind its normalizer no text has a space.
    const bool has_no_spaces =
        !normalizer_.empty() && normalizer_.back().kind == NormalizerStep::Kind::kReplace &&
        normalizer_.back().from == " " && normalizer_.back().to.find(' ') == std::string::npos;
    if (has_no_spaces && !invert && pattern != nullptr && *pattern == json{{"String", " "}}) return;
    std::string regex;
    if (pattern != nullptr && pattern->contains("Regex")) {
      JsonFields pattern_fields(*pattern, "pattern");
      pattern_fields.RejectOthers({"Regex"});
      regex = pattern_fields.Text("Regex");
      if (!pattern_fields.status().ok()) fields->Fail(StrCat(pattern_fields.status().message()));
    } else {
      for (const char c : LiteralPattern(fields)) {
        const bool is_punctuation = c > ' ' && c < 0x7F && std::isalnum(uint8_t(c)) == 0;
        if (is_punctuation) regex += '\\';
        regex += c;
      }
    }
    // Both give the matches of a pattern that matches every character.
    const bool removes_rest = behavior == "Removed" && invert && MatchesAllText(regex);
    if (!removes_rest && (behavior != "Isolated" || invert)) {
      fields->Fail(StrCat("behavior is ", Quote(behavior), " with invert ",
                          invert ? "true" : "false", ", must be \"Isolated\" with false"));
    }
    AddPattern(regex);
  }

  static bool MatchesAllText(std::string_view regex) {
    return regex == kGpt2Pattern || regex == kCl100kPattern || regex == kQwen2Pattern ||
           regex == kO200kPattern;
  }

  void ReadMetaspace(JsonFields* fields) {
    fields->RejectOthers(
        {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
    const std::string replacement = fields->Text("replacement");
    if (replacement != kSpaceSymbol) fields->Fail("replacement must be U+2581");
    const std::string scheme =
        fields->Text("prepend_scheme", fields->Bool("add_prefix_space", true) ? "always" : "never");
    pre_tokenizer_.push_back({.kind = StepKind::kEscapeSpaces});
    if (scheme == "always") {
      pre_tokenizer_.push_back({.kind = StepKind::kPrefixAll});
    } else if (scheme == "first") {
      pre_tokenizer_.push_back({.kind = StepKind::kPrefixText});
    } else if (scheme != "never") {
      fields->Fail(
          StrCat("prepend_scheme is ", Quote(scheme), ", must be one of always, first, never"));
    }
    if (fields->Bool("split", true))
      pre_tokenizer_.push_back({.kind = StepKind::kSplitBeforeSpace});
  }

  // ByteLevel changes offsets only. A template puts special tokens around a text: this project
  // takes BOS from tokenizer_config.json's add_bos_token.
  absl::Status CheckPostProcessor(const json& object, const std::string& where) {
    JsonFields fields = FieldsOf(object, where);
    const std::string type = fields.Text("type");
    if (type == "Sequence") {
      return ForEach("processors", where, &fields, [&](const json& one, const std::string& at) {
        return CheckPostProcessor(one, at);
      });
    }
    if (type == "TemplateProcessing") return CheckTemplate(where, &fields);
    if (type != "ByteLevel") {
      RejectType(type, "one of ByteLevel, TemplateProcessing, Sequence", &fields);
    }
    return fields.status();
  }

  absl::Status CheckTemplate(const std::string& where, JsonFields* fields) {
    std::string before;
    bool has_text = false;
    RETURN_IF_ERROR(ForEach("single", where, fields, [&](const json& part, const std::string& at) {
      JsonFields part_fields = FieldsOf(part, at);
      part_fields.RejectOthers({"SpecialToken", "Sequence"});
      const json* const token = part_fields.Object("SpecialToken");
      if (token == nullptr) {
        has_text = true;
      } else if (has_text) {
        part_fields.Fail("puts a special token behind the text, which is not supported");
      } else if (!before.empty()) {
        part_fields.Fail("puts a second special token before the text, which is not supported");
      } else {
        before = FieldsOf(*token, at).Text("id", "");
      }
      return part_fields.status();
    }));
    if (before.empty()) return absl::OkStatus();
    if (SaysAddBosToken()) return ReadTokenBeforeText(before, where, fields);
    fields->Fail(StrCat("puts ", Quote(before), " before each text: ", directory_,
                        "/tokenizer_config.json must have add_bos_token, true or false"));
    return fields->status();
  }

  // The id of the template's token `name`, which special_tokens says, not the vocabulary.
  absl::Status ReadTokenBeforeText(const std::string& name, const std::string& where,
                                   JsonFields* fields) {
    const json* const tokens = fields->Object("special_tokens");
    if (tokens == nullptr) fields->Fail("special_tokens is missing");
    RETURN_IF_ERROR(fields->status());
    JsonFields tokens_fields = FieldsOf(*tokens, StrCat(where, ": special_tokens"));
    const json* const token = tokens_fields.Object(name);
    if (token == nullptr) tokens_fields.Fail(StrCat(Quote(name), " is missing"));
    RETURN_IF_ERROR(tokens_fields.status());
    JsonFields token_fields = FieldsOf(*token, StrCat(where, ": special_tokens: ", Quote(name)));
    const json* const ids = token_fields.Array("ids");
    if (ids == nullptr || ids->size() != 1 || !(*ids)[0].is_number_unsigned() ||
        (*ids)[0].get<uint64_t>() > uint64_t(kMaxId)) {
      token_fields.Fail(
          StrCat("ids is ", ids == nullptr ? "missing" : QuoteJson(*ids), ", must be one id"));
      return token_fields.status();
    }
    token_before_text_ = (*ids)[0].get<int32_t>();
    return absl::OkStatus();
  }

  bool SaysAddBosToken() const {
    const std::string path = directory_ + "/tokenizer_config.json";
    const absl::StatusOr<std::string> text = ReadWholeFile(path);
    if (!text.ok()) return false;
    const absl::StatusOr<json> parsed = ParseJson(*text, path);
    return parsed.ok() && JsonFields(*parsed, path).Has("add_bos_token");
  }

  // Decoding is Tokenizer::PieceBytes: a decoder must give the same text.
  absl::Status ReadDecoder(const json* decoder) {
    if (decoder == nullptr) {
      if (is_byte_level_) return absl::OkStatus();
      return absl::InvalidArgumentError(
          StrCat(path_,
                 ": decoder is missing, must be Metaspace or a Sequence of Replace, "
                 "ByteFallback, Fuse, Strip; or pre_tokenizer must have ByteLevel"));
    }
    JsonFields fields = FieldsOf(*decoder, "decoder");
    const std::string type = fields.Text("type");
    if (is_byte_level_) {
      if (type != "ByteLevel") RejectType(type, "ByteLevel, as the pre_tokenizer", &fields);
      return fields.status();
    }
    if (type == "Metaspace") {
      const std::string scheme =
          fields.Text("prepend_scheme", fields.Bool("add_prefix_space", true) ? "always" : "never");
      if (fields.Text("replacement") != kSpaceSymbol) fields.Fail("replacement must be U+2581");
      adds_dummy_prefix_ = scheme != "never";
      return fields.status();
    }
    if (type != "Sequence") RejectType(type, "Metaspace or Sequence", &fields);
    RETURN_IF_ERROR(fields.status());
    std::vector<std::string> types;
    RETURN_IF_ERROR(
        ForEach("decoders", "decoder", &fields, [&](const json& one, const std::string& at) {
          JsonFields step = FieldsOf(one, at);
          types.push_back(step.Text("type"));
          if (types.back() == "Replace" &&
              (LiteralPattern(&step) != kSpaceSymbol || step.Text("content") != " ")) {
            step.Fail("must replace U+2581 by a space");
          }
          if (types.back() == "Strip") {
            adds_dummy_prefix_ = true;
            if (step.Text("content") != " " || step.Int("start", 0, kMaxId) != 1 ||
                step.Int("stop", 0, kMaxId) != 0) {
              step.Fail("must strip one space from the start");
            }
          }
          return step.status();
        }));
    const std::vector<std::string> wanted{"Replace", "ByteFallback", "Fuse"};
    std::vector<std::string> wanted_with_strip = wanted;
    wanted_with_strip.emplace_back("Strip");
    if (types != wanted && types != wanted_with_strip) {
      fields.Fail(StrCat("decoders are ", StrJoin(types), "; must be ", StrJoin(wanted),
                         " and possibly Strip"));
    }
    return fields.status();
  }

  // Each merge is "left right" or ["left", "right"].
  absl::Status ReadMerges(const json& merges, VocabularyBuilder* builder) const {
    for (size_t i = 0; i < merges.size(); ++i) {
      const json& merge = merges[i];
      const std::string where = StrCat(path_, ": model: merges[", i, "]");
      std::string_view left, right;
      if (merge.is_string()) {
        const std::string_view text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        left = text.substr(0, space);
        if (space != text.npos) right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      }
      if (left.empty() || right.empty()) {
        return absl::InvalidArgumentError(where + ": must be two pieces");
      }
      RETURN_IF_ERROR(builder->AddMerge(left, right, where));
    }
    return absl::OkStatus();
  }

  absl::Status ReadModel(const json& object, VocabularyBuilder* builder) {
    JsonFields fields = FieldsOf(object, "model");
    fields.RejectOthers({"type", "dropout", "unk_token", "continuing_subword_prefix",
                         "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                         "vocab", "merges"});
    const std::string type = fields.Text("type", "BPE");  // old files do not say
    if (type != "BPE") RejectType(type, "BPE", &fields);
    if (fields.Number("dropout", 0, 1, 0.0) != 0) fields.Fail("dropout must be null or 0");
    for (const std::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!fields.Text(name, "").empty()) fields.Fail(StrCat(name, " must be null or empty"));
    }
    const bool ignore_merges = fields.Bool("ignore_merges", false);
    const bool byte_fallback = fields.Bool("byte_fallback", false);
    const std::string unknown = fields.Text("unk_token", "");
    const bool fuse_unknown = fields.Bool("fuse_unk", false);
    const json* const names = fields.Object("vocab");
    const json* const merges = fields.Array("merges");
    num_pieces_ = names == nullptr ? 0 : int64_t(names->size());
    if (names == nullptr || merges == nullptr) fields.Fail("must have vocab and merges");
    RETURN_IF_ERROR(fields.status());

    RETURN_IF_ERROR(AddPieces(*names, path_, builder));
    builder->FindSymbols(byte_fallback);
    RETURN_IF_ERROR(ReadMerges(*merges, builder));
    if (ignore_merges) builder->MakeAllPiecesWords();

    BpeModel& model = builder->Get()->model;
    model.unknown_id = builder->IdOf(unknown);
    model.fuse_unknown = fuse_unknown;
    if (!unknown.empty() && model.unknown_id == kNoId) {
      fields.Fail(StrCat("unk_token ", Quote(unknown), " is not in the vocabulary"));
    }
    if (is_byte_level_) {
      // Hugging Face would write such a byte of a ByteLevel text as "<0xC3><0xA9>".
      if (byte_fallback && builder->FirstByteWithoutPiece()) {
        fields.Fail(
            "byte_fallback is true, must be false with ByteLevel, where bytes have no piece");
      }
      return fields.status();
    }
    // A text is one word here. It may be split where no merge reaches across: the ids are the same.
    const bool has_splits =
        !pre_tokenizer_.empty() && pre_tokenizer_.back().kind == StepKind::kSplitBeforeSpace;
    if (!has_splits && !ignore_merges && !builder->MergesAcrossSpaces() &&
        builder->IdOf(kSpaceSymbol) != kNoId) {
      pre_tokenizer_.push_back({.kind = StepKind::kSplitBeforeSpaces});
    }
    return fields.status();
  }

  absl::Status ReadAddedTokens(const json& tokens, VocabularyBuilder* builder) const {
    for (size_t i = 0; i < tokens.size(); ++i) {
      JsonFields fields(tokens[i], StrCat(path_, ": added_tokens[", i, "]"));
      const bool is_special = fields.Bool("special", false);
      AddedToken token{.content = fields.Text("content"),
                       .id = int32_t(fields.Int("id", 0, kMaxId)),
                       .is_special = is_special,
                       .is_normalized = fields.Bool("normalized", !is_special)};
      for (const std::string_view name : {"single_word", "lstrip", "rstrip"}) {
        if (fields.Bool(name, false)) fields.Fail(StrCat(name, " is true, must be false"));
      }
      RETURN_IF_ERROR(fields.status());
      RETURN_IF_ERROR(builder->AddToken(std::move(token)));
    }
    return absl::OkStatus();
  }

  // transformers adds the tokens beside a tokenizer.json that lacks them, each with the next id,
  // and takes the others' kind from added_tokens_decoder.
  absl::Status AddTokensBeside(VocabularyBuilder* builder) const {
    ASSIGN_OR_RETURN(TokensBeside beside, ReadTokensBeside(directory_));
    RETURN_IF_ERROR(CheckPrefixSpace(beside));
    Added added{.next_id = num_pieces_};
    const std::vector<AddedToken>& before = builder->Get()->added_tokens;
    for (size_t i = 0; i < before.size(); ++i) added.Add(before[i], i);
    for (size_t i = 0; i < beside.tokens.size(); ++i) {
      AddedToken& token = beside.tokens[i];
      const bool is_stale = i >= beside.num_in_decoder && beside.has_decoder && token.id != kNoId;
      if (!is_stale) RETURN_IF_ERROR(AddTokenBeside(std::move(token), &added, builder));
    }
    return absl::OkStatus();
  }

  // The added tokens so far.
  struct Added {
    TextMap<size_t> indices = {};  // by content
    int64_t next_id = 0;           // behind those of the pieces and of these tokens

    void Add(const AddedToken& token, size_t index) {
      indices.emplace(token.content, index);
      next_id = std::max(next_id, int64_t{token.id} + 1);
    }
  };

  absl::Status AddTokenBeside(AddedToken token, Added* added, VocabularyBuilder* builder) const {
    BpeVocabulary& vocabulary = *builder->Get();
    if (const auto found = added->indices.find(token.content); found != added->indices.end()) {
      if (token.id == kNoId) return absl::OkStatus();
      AddedToken& known = vocabulary.added_tokens[found->second];
      known.is_special = token.is_special;
      known.is_normalized = token.is_normalized;
      vocabulary.pieces[size_t(known.id)] = token.is_special ? "" : token.content;
      return absl::OkStatus();
    }
    int64_t next = builder->IdOf(token.content);
    if (next == kNoId) {
      next = added->next_id;
      if (token.id != kNoId && token.id != next) {
        return CannotAddToken(path_, token.content, next,
                              StrCat("but it is token ", token.id, " there"));
      }
      const auto vocab_size = int64_t(vocabulary.pieces.size());
      if (next >= vocab_size) {
        return CannotAddToken(path_, token.content, next,
                              StrCat("but vocab_size of config.json is ", vocab_size,
                                     "; remove it there if the model does not use it"));
      }
    }
    token.id = int32_t(next);
    added->Add(token, vocabulary.added_tokens.size());
    return builder->AddToken(std::move(token));
  }

  // Some classes of transformers go by the one, others by the other.
  absl::Status CheckPrefixSpace(const TokensBeside& beside) const {
    if (!is_byte_level_) return absl::OkStatus();
    const auto text = [](bool value) { return value ? "true" : "false"; };
    const std::string said = StrCat(directory_, "/tokenizer_config.json: ");
    const std::string_view own_class = beside.tokenizer_class;
    const bool assumes_none =
        std::ranges::count(kNoSpaceClasses, own_class.substr(0, own_class.rfind("Fast"))) > 0;
    if (!beside.add_prefix_space && byte_level_adds_space_ && assumes_none) {
      return absl::InvalidArgumentError(
          StrCat(said, "tokenizer_class is ", Quote(own_class),
                 ", which puts no space before a text unless add_prefix_space is true, but it is "
                 "true in the pre_tokenizer of tokenizer.json; make that false, or write "
                 "add_prefix_space true"));
    }
    if (!beside.add_prefix_space || *beside.add_prefix_space == byte_level_adds_space_) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        StrCat(said, "add_prefix_space is ", text(*beside.add_prefix_space), ", but ",
               text(byte_level_adds_space_),
               " in the pre_tokenizer of tokenizer.json; they must be equal"));
  }

  const std::string directory_, path_;
  std::vector<NormalizerStep> normalizer_;
  std::vector<PreTokenizerStep> pre_tokenizer_;
  bool is_byte_level_ = false;
  bool byte_level_adds_space_ = false;
  int64_t num_pieces_ = 0;  // of the model
  bool adds_dummy_prefix_ = false;
  std::optional<int32_t> token_before_text_;
};

}  // namespace

absl::StatusOr<BpeVocabulary> ReadTokenizerJson(const std::string& directory, int vocab_size) {
  const std::string path = directory + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  return Reader(directory, path).Read(text, vocab_size);
}

}  // namespace lssar
