#include "models/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/str_cat.h"
#include "base/utf8.h"
#include "models/text/sentence_piece_file.h"
#include "nlohmann/json.hpp"
#include "tests/models/fixture.h"
#include "tests/models/sentence_piece_library.h"
#include "tests/models/tokenizer_texts.h"

namespace lssar {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MessageOf;
using testing::Shipped;

std::string Streamed(const std::vector<int32_t>& ids, bool continues_text = false) {
  StreamDecoder decoder(&Shipped(), continues_text);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = decoder.Push(id);
    EXPECT_FALSE(FindInvalidUtf8(part)) << "returned half a character";
    text += part;
  }
  return text + decoder.Finish();
}

std::vector<int32_t> BytePieces(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(7 + int32_t(uint8_t(c)));  // "<0x00>" is piece 7
  return ids;
}

const std::vector<std::string>& Texts() {
  static const std::vector<std::string> texts{
      "",
      "Hello, world.",
      " a leading space,  two spaces, and one behind ",
      "tabs\tand\nnewlines\n\n",
      "Grüße aus Köln; ça va? Ελληνικά, русский, עברית, العربية",
      "日本語と中文、한국어, हिन्दी, ไทย",
      "emoji: 😀 👩‍👩‍👧‍👦 🇩🇪 👍🏽 e\u0301",
      "<|user|>What is 12345?\n<|assistant|>",
      std::string("a\0b", 3),
  };
  return texts;
}

TEST(TokenizerTest, RoundTripsStreamedAndWhole) {
  for (const std::string& text : Texts()) {
    const absl::StatusOr<std::vector<int32_t>> ids = Shipped().Encode(text);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(Decode(Shipped(), *ids), text);
    EXPECT_EQ(Streamed(*ids), text);
  }
}

TEST(TokenizerTest, SpecialTokensHaveTheirTextWhereTheyAreNotSkipped) {
  const int32_t eos = 2, user = 4;  // a control piece and a user-defined one
  EXPECT_EQ(Shipped().PieceBytes(eos), "");
  EXPECT_EQ(Shipped().SpecialTokenName(eos), "</s>");
  EXPECT_EQ(Shipped().SpecialTokenName(user), "") << Shipped().PieceBytes(user) << " has bytes";
  EXPECT_EQ(Shipped().SpecialTokenName(Shipped().VocabSize() - 1), "");
  std::vector<int32_t> ids = Shipped().Encode("The cat").value();
  ids.insert(ids.begin(), eos);
  ids.push_back(eos);
  EXPECT_EQ(Decode(Shipped(), ids), "The cat");
  // The space is the text's first only where no name is before it: tokenizers 0.23.
  EXPECT_EQ(Decode(Shipped(), ids, /*skips_special_tokens=*/false), "</s> The cat</s>");
  ids.erase(ids.begin());
  EXPECT_EQ(Decode(Shipped(), ids, /*skips_special_tokens=*/false), "The cat</s>");
  ids.insert(ids.begin(), Shipped().VocabSize() - 1);  // an id without a text and a name
  // Half a character before a special token is no character.
  ids = BytePieces("\xe2\x82");
  ids.push_back(eos);
  EXPECT_EQ(Decode(Shipped(), ids, /*skips_special_tokens=*/false), "\uFFFD</s>");
}

TEST(TokenizerTest, DecodesAsTheLibraryDoes) {
  const testing::SentencePieceLibrary library(
      testing::ReadFile(std::string(testing::kShippedModel) + "/tokenizer.model"));
  EXPECT_TRUE(Shipped().AddsDummyPrefix());
  for (const std::string& text : Texts()) {
    const std::vector<int32_t> ids = Shipped().Encode(text).value();
    EXPECT_EQ(Decode(Shipped(), ids), library.Decode(ids));
  }
  // Text pieces only: the library decodes ill-formed bytes differently.
  std::mt19937 rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids(1 + rng() % 8);
    for (int32_t& id : ids) id = 263 + int32_t(rng() % (4096 - 263));
    EXPECT_EQ(Decode(Shipped(), ids), library.Decode(ids));
  }
}

TEST(TokenizerTest, StreamedRandomIdsEqualDecode) {
  std::mt19937 rng(2);
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> ids(rng() % 24);
    for (int32_t& id : ids) {
      // Half of the ids are byte pieces, so that many characters are unfinished or ill-formed.
      id = rng() % 2 == 0 ? 7 + int32_t(rng() % 256) : int32_t(rng() % 4096);
    }
    const std::string whole = Decode(Shipped(), ids);
    EXPECT_EQ(Streamed(ids), whole);
    EXPECT_FALSE(FindInvalidUtf8(whole));
  }
}

TEST(TokenizerTest, RoleTokensAreOneId) {
  EXPECT_THAT(Shipped().Encode("<|user|>").value(), ::testing::Contains(4));
  EXPECT_THAT(Shipped().Encode("<|assistant|>").value(), ::testing::Contains(5));
  EXPECT_EQ(Shipped().PieceBytes(4), "<|user|>");
}

TEST(TokenizerTest, PieceBytes) {
  EXPECT_EQ(Shipped().VocabSize(), 4096);
  EXPECT_EQ(Shipped().PieceBytes(2), "") << "</s> is a control token";
  EXPECT_EQ(Shipped().PieceBytes(7 + 0xF0), "\xF0");
  EXPECT_EQ(Shipped().PieceBytes(267), " the");
  EXPECT_EQ(Shipped().Hash().size(), 16u);
}

TEST(TokenizerTest, LeadingSpace) {
  EXPECT_EQ(Streamed({267, 267}), "the the");
  EXPECT_EQ(Streamed({2, 267}), "the") << "BOS has no text";
  EXPECT_EQ(Streamed({267}, /*continues_text=*/true), " the");
  EXPECT_EQ(Streamed({264, 267}), "he the");
}

TEST(TokenizerTest, RefusesInvalidUtf8) {
  const absl::Status status = Shipped().Encode("ab\xC3(").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("UTF-8"), HasSubstr("byte 2 of 4")));
  EXPECT_FALSE(Shipped().Encode("\xED\xA0\x80").ok()) << "a surrogate";
}

// A character may lie across the places where a long text is polled.
TEST(TokenizerTest, FindsInvalidUtf8InLongTexts) {
  const auto check = [](std::string_view text) {
    return CheckTokenizerText(text, [] { return false; });
  };
  for (size_t size = (size_t{1} << 16) - 5; size < (size_t{1} << 16) + 5; ++size) {
    std::string text(size, 'a');
    text += "\U0001F600\u65e5z";
    EXPECT_TRUE(check(text).ok()) << size;
    EXPECT_FALSE(check(text + "\x80").ok());
    text[size + 2] = 'b';
    EXPECT_THAT(MessageOf(check(text)), HasSubstr(StrCat("byte ", size, " of")));
  }
  EXPECT_FALSE(check(std::string(200'000, '\x80')).ok());
}

// The Unicode Standard, tables 3-8 to 3-11.
TEST(StreamDecoderTest, IllFormedBytesAreMaximalSubparts) {
  const auto decoded = [](std::string_view bytes) { return Streamed(BytePieces(bytes)); };
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(decoded("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(decoded("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(decoded("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(decoded("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(StreamDecoderTest, NamesOfSpecialTokensAreInTheTextWhereAskedFor) {
  const std::vector<int32_t> text = Shipped().Encode("Hello").value();
  EXPECT_EQ(Shipped().SpecialTokenName(2), "</s>");
  EXPECT_EQ(Shipped().SpecialTokenName(text[0]), "");
  for (const bool skips : {true, false}) {
    StreamDecoder decoder(&Shipped(), /*continues_text=*/false, skips);
    std::string decoded;
    for (const int32_t id : text) decoded += decoder.Push(id);
    decoded += decoder.Push(2);
    EXPECT_EQ(decoded + decoder.Finish(), skips ? "Hello" : "Hello</s>");
  }
}

TEST(StreamDecoderTest, BuffersACharacterUntilItIsComplete) {
  StreamDecoder decoder(&Shipped(), false);
  const std::vector<int32_t> ids = BytePieces("\xF0\x9F\x98\x80x");
  EXPECT_EQ(decoder.Push(ids[0]), "");
  EXPECT_EQ(decoder.Push(ids[1]), "");
  EXPECT_EQ(decoder.Push(ids[2]), "");
  EXPECT_EQ(decoder.Push(ids[3]), "😀");
  EXPECT_EQ(decoder.Push(ids[4]), "x");
  EXPECT_EQ(decoder.Push(ids[0]), "");
  EXPECT_EQ(decoder.Push(ids[4]), std::string(kReplacementCharacter) + "x")
      << "interrupted by another piece";
  EXPECT_EQ(decoder.Push(ids[0]), "");
  EXPECT_EQ(decoder.Finish(), kReplacementCharacter);
}

TEST(Utf8Test, FindInvalid) {
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("añ日😀\U0010FFFF"), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("ab\x80"), 2u);
  EXPECT_EQ(FindInvalidUtf8("日\xF0\x9F"), 3u);
}

// tokenizer.model and tokenizer.json side by side, as many directories of transformers have them.
class TwoTokenizers : public ::testing::Test {
 protected:
  static constexpr int kVocab = 4100;  // the shipped model has 4,096

  static std::string ModelBytes() {
    return testing::ReadFile(std::string(testing::kShippedModel) + "/tokenizer.model");
  }
  static SentencePieceFile Model() {
    return ParseSentencePieceFile(ModelBytes(), "tokenizer.model", kVocab).value();
  }
  static json Replace(const std::string& from, const std::string& to) {
    return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  }
  // The same pieces; without merges. Its rules: transformers' of a "legacy" Llama.
  static json Bpe() {
    json vocabulary = json::object();
    const SentencePieceFile file = Model();
    for (size_t id = 0; id < file.pieces.size(); ++id) vocabulary[file.pieces[id].text] = id;
    const json prepend = {{"type", "Prepend"}, {"prepend", "\u2581"}};
    return {
        {"added_tokens", {{{"id", 2}, {"content", "</s>"}, {"special", true}}}},
        {"normalizer", {{"type", "Sequence"}, {"normalizers", {prepend, Replace(" ", "\u2581")}}}},
        {"pre_tokenizer", nullptr},
        {"decoder",
         {{"type", "Sequence"},
          {"decoders",
           {Replace("\u2581", " "),
            {{"type", "ByteFallback"}},
            {{"type", "Fuse"}},
            {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
        {"model",
         {{"type", "BPE"},
          {"vocab", vocabulary},
          {"merges", json::array()},
          {"byte_fallback", true}}}};
  }
  static json Unigram() {
    json vocabulary = json::array();
    for (const auto& piece : Model().pieces) vocabulary.push_back({piece.text, -1.5});
    return {{"normalizer",
             {{"type", "Sequence"},
              {"normalizers",
               {{{"type", "Precompiled"}},
                {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}}}}},
            {"pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "always"}}},
            {"model", {{"type", "Unigram"}, {"vocab", vocabulary}}}};
  }

  absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const json& file, bool has_model = true,
                                                  std::string_view added = "") {
    const ScratchDirectory directory;
    if (has_model) directory.Write("tokenizer.model", ModelBytes());
    directory.Write("tokenizer.json", file.dump());
    if (!added.empty()) directory.Write("added_tokens.json", added);
    return LoadTokenizer(directory.Path(), kVocab);
  }
  std::string Problem(const json& file, std::string_view added = "") {
    return StrCat(Load(file, true, added).status().message());
  }
};

// Ids: tokenizers 0.23 puts a space behind each special token, this project's reading of
// tokenizer.model before the text alone.
TEST_F(TwoTokenizers, TheRulesOfTokenizerJsonCount) {
  const auto space = int32_t(Bpe()["model"]["vocab"]["\u2581"]);
  const auto ids_of = [&](const json& file, std::string_view text) {
    const auto both = Load(file), alone = Load(file, /*has_model=*/false);
    EXPECT_TRUE(both.ok()) << both.status();
    if (!both.ok() || !alone.ok()) return std::vector<int32_t>();
    EXPECT_EQ((*both)->Hash(), (*alone)->Hash());
    EXPECT_EQ((*both)->Encode(text).value(), (*alone)->Encode(text).value());
    return (*both)->Encode(text).value();
  };
  json file = Bpe();
  const auto a = int32_t(file["model"]["vocab"]["a"]), b = int32_t(file["model"]["vocab"]["b"]);
  EXPECT_THAT(ids_of(file, "a</s>b"), ElementsAre(space, a, 2, space, b));
  file["normalizer"] = Replace(" ", "\u2581");
  EXPECT_THAT(ids_of(file, "a</s>b a"), ElementsAre(a, 2, b, space, a));
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"String", " "}}},
                           {"behavior", "MergedWithPrevious"},
                           {"invert", false}};  // Gemma's
  EXPECT_THAT(ids_of(file, "a b"), ElementsAre(a, space, b));
  file = Bpe();
  file["normalizer"]["normalizers"].insert(file["normalizer"]["normalizers"].begin(),
                                           Replace("a", "b"));
  EXPECT_THAT(ids_of(file, "a"), ElementsAre(space, b));
  file["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(Problem(file), AllOf(HasSubstr("type is \"Lowercase\""),
                                   HasSubstr("tokenizer.json comes before tokenizer.model")));
}

TEST_F(TwoTokenizers, AnotherKindMustHaveTheRulesOfTheModel) {
  EXPECT_EQ(Problem(Unigram()), "");
  EXPECT_EQ((*Load(Unigram()))->Hash(), Shipped().Hash());
  json file = Unigram();
  file["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_THAT(Problem(file), AllOf(HasSubstr("pre_tokenizer of tokenizer.json is {\"prepend_"),
                                   HasSubstr("remove the file")));
  file["pre_tokenizer"] = nullptr;
  EXPECT_THAT(Problem(file), HasSubstr("pre_tokenizer of tokenizer.json is null, which is not"));
  file = Unigram();
  file["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(Problem(file), HasSubstr("normalizer of tokenizer.json is {\"type\":\"Lowercase"));
  file = Unigram();
  file["normalizer"]["normalizers"][1]["pattern"] = {{"String", "a"}};
  EXPECT_THAT(Problem(file), HasSubstr("normalizer of tokenizer.json is "));
}

TEST_F(TwoTokenizers, TheirTokensMustBeTheSame) {
  json other = Unigram();
  std::swap(other["model"]["vocab"][300], other["model"]["vocab"][301]);
  EXPECT_THAT(Problem(other),
              AllOf(HasSubstr("tokenizer.model and tokenizer.json are not one tokenizer"),
                    HasSubstr("token 300 is"), HasSubstr("remove the file")));
  other = Bpe();
  other["model"]["vocab"]["another piece"] = 17;
  other["model"]["vocab"].erase(Model().pieces[17].text);
  EXPECT_THAT(Problem(other), HasSubstr("token 17 is \"another piece\""));

  const json chat = {{{"id", 4096}, {"content", "<|im_start|>"}, {"special", true}}};
  other = Unigram();
  other["added_tokens"] = chat;
  EXPECT_THAT(Problem(other),
              HasSubstr("token 4096 is \"<|im_start|>\" in tokenizer.json, and no token"));
  EXPECT_EQ(Problem(other, R"({"<|im_start|>": 4096})"), "");
  EXPECT_NE(Problem(other, R"({"<|im_end|>": 4096})"), "");
  other = Bpe();
  other["added_tokens"] = chat;
  EXPECT_THAT((*Load(other))->Encode("<|im_start|>").value(), ElementsAre(4096));
}

// The ids are those of AutoTokenizer, transformers 5.24, of class TokenizersBackend.
TEST(LoadTokenizerTest, SpecialTokensBesideTokenizerModelGetTheNextIds) {
  const auto load = [](const std::string& config, int vocab_size = 4100) {
    const ScratchDirectory directory;
    directory.Write("tokenizer.model",
                    testing::ReadFile(std::string(testing::kShippedModel) + "/tokenizer.model"));
    directory.Write("tokenizer_config.json", config);
    return LoadTokenizer(directory.Path(), vocab_size);
  };
  const auto ids = [&](const std::string& config) {
    const auto tokenizer = load(config);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode("<|x|><|y|></s>").value() : std::vector<int32_t>();
  };
  EXPECT_THAT(ids(R"({"additional_special_tokens": ["<|x|>", "<|y|>", "</s>"]})"),
              ElementsAre(4096, 4097, 2));
  EXPECT_THAT(ids(R"({"additional_special_tokens": ["<|x|>", "<|y|>"], "pad_token": "[PAD]",
                      "eos_token": "</s>"})"),
              ElementsAre(4097, 4098, 2));
  EXPECT_THAT(ids(R"({"mask_token": "<|x|>", "eos_token": "</s>",
                      "added_tokens_decoder": {"4096": {"content": "<|y|>"}}})"),
              ElementsAre(4097, 4096, 2));
  EXPECT_THAT(MessageOf(load(R"({"additional_special_tokens": ["<|x|>"]})", 4096).status()),
              AllOf(HasSubstr("tokenizer.model: lacks \"<|x|>\""),
                    HasSubstr("but vocab_size of config.json is 4096")));
  EXPECT_THAT(MessageOf(load(R"({"pad_token": "<|x|>", "added_tokens_decoder":
                                {"4098": {"content": "<|y|>"}}})")
                            .status()),
              HasSubstr("as token 4097, or as 4099"));
  EXPECT_THAT(
      MessageOf(load(R"({"added_tokens_decoder": {"4098": {"content": "</s>"}}})").status()),
      HasSubstr("\"</s>\" beside it has id 4098, and is piece 2"));
}

TEST(LoadTokenizerTest, BadFiles) {
  const ScratchDirectory directory;
  EXPECT_EQ(LoadTokenizer(directory.Path(), 10).status().code(), absl::StatusCode::kNotFound);
  directory.Write("tokenizer.model", "not a model");
  EXPECT_THAT(MessageOf(LoadTokenizer(directory.Path(), 10).status()),
              AllOf(HasSubstr("tokenizer.model"), HasSubstr("not a SentencePiece model")));
  EXPECT_THAT(MessageOf(LoadTokenizer(std::string(testing::kShippedModel), 4000).status()),
              AllOf(HasSubstr("more than 4000 pieces"), HasSubstr("vocab_size")));
}

}  // namespace
}  // namespace lssar
