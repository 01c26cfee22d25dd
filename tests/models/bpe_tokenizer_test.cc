// GPT-2's byte-level BPE: ids compared with tiktoken's, and files that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/str_cat.h"
#include "models/checkpoint.h"
#include "models/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/models/fixture.h"
#include "tests/models/tokenizer_texts.h"

namespace lssar {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Gpt2;
using ::testing::HasSubstr;
using testing::MessageOf;
using testing::ReadFile;

const std::string kGpt2 = "tests/models/gpt2";
constexpr int kPieces = 50257;
constexpr int32_t kEndOfText = 50256;

// The same vocabulary as a Hugging Face tokenizer.json.
json Gpt2TokenizerJson() {
  json merges = json::array();
  const std::string lines = ReadFile(kGpt2 + "/merges.txt");
  for (size_t at = lines.find('\n') + 1; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    merges.push_back(lines.substr(at, end - at));
    at = end + 1;
  }
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", kEndOfText}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", json::parse(ReadFile(kGpt2 + "/vocab.json"))},
            {"merges", std::move(merges)}}}};
}

void ExpectIdsOfTiktoken(const Tokenizer& tokenizer) {
  for (const json& row : json::parse(ReadFile(kGpt2 + "/texts.json"))) {
    const auto text = row["text"].get<std::string>();
    const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, row["ids"].get<std::vector<int32_t>>()) << row["text"];
    if (text.find("<|endoftext|>") == text.npos) {
      EXPECT_EQ(Decode(tokenizer, *ids), text);
    }
  }
}

TEST(ByteLevelTokenizerTest, IdsMatchTiktoken) { ExpectIdsOfTiktoken(Gpt2()); }

TEST(ByteLevelTokenizerTest, TokenizerJsonGivesTheSameIds) {
  json file = Gpt2TokenizerJson();
  const ScratchDirectory directory;
  directory.Write("tokenizer.json", file.dump());
  ExpectIdsOfTiktoken(**LoadTokenizer(directory.Path(), kPieces));
  // Newer files store merges as pairs.
  for (json& merge : file["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  directory.Write("tokenizer.json", file.dump());
  ExpectIdsOfTiktoken(**LoadTokenizer(directory.Path(), kPieces));
}

TEST(ByteLevelTokenizerTest, PiecesAreBytes) {
  EXPECT_EQ(Gpt2().VocabSize(), kPieces);
  EXPECT_FALSE(Gpt2().AddsDummyPrefix());
  const std::vector<int32_t> ids = Gpt2().Encode(" the").value();
  ASSERT_THAT(ids, ElementsAre(262));
  EXPECT_EQ(Gpt2().PieceBytes(262), " the");
  const std::vector<int32_t> parts = Gpt2().Encode("\u20ac\x7f").value();
  std::string bytes;
  for (const int32_t id : parts) bytes += Gpt2().PieceBytes(id);
  EXPECT_EQ(bytes, "\u20ac\x7f");
  EXPECT_EQ(Gpt2().PieceBytes(kEndOfText), "");
  EXPECT_EQ(Gpt2().Hash().size(), 16u);
}

// SmolLM2's vocabulary lacks 21 bytes. Ids: tokenizers 0.23.
TEST(ByteLevelTokenizerTest, AByteWithoutPieceIsUnknownOrDropped) {
  json file = {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
               {"added_tokens", json::array()},
               {"model",
                {{"type", "BPE"},
                 {"vocab", {{"<unk>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}}},
                 {"merges", {"a b"}}}}};
  const auto ids_of = [&](std::string_view text) {
    const ScratchDirectory directory;
    directory.Write("tokenizer.json", file.dump());
    const auto tokenizer = LoadTokenizer(directory.Path(), 4);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode(text).value() : std::vector<int32_t>();
  };
  EXPECT_THAT(ids_of("axxbab"), ElementsAre(3, 3));  // "a" and "b" meet, and merge
  EXPECT_THAT(ids_of("xx"), ElementsAre());
  file["model"]["unk_token"] = "<unk>";
  EXPECT_THAT(ids_of("axxbab"), ElementsAre(1, 0, 0, 2, 3));
  file["model"]["fuse_unk"] = true;
  EXPECT_THAT(ids_of("axxbab"), ElementsAre(1, 0, 2, 3));
}

// Models pad their vocabulary to a round number.
TEST(ByteLevelTokenizerTest, VocabSizeMayBePadded) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> padded = LoadTokenizer(kGpt2, 50304);
  ASSERT_TRUE(padded.ok()) << padded.status();
  EXPECT_EQ((*padded)->VocabSize(), 50304);
  EXPECT_EQ((*padded)->PieceBytes(50303), "");
  EXPECT_EQ((*padded)->Encode("padded").value(), Gpt2().Encode("padded").value());
}

TEST(ByteLevelTokenizerTest, RefusesInvalidUtf8) {
  EXPECT_THAT(MessageOf(Gpt2().Encode("ab\xff").status()), HasSubstr("byte 2 of 3"));
}

// encoder.json and vocab.bpe are OpenAI's names of the same files; a tiktoken file has the pieces
// with their ranks.
TEST(ByteLevelTokenizerTest, OtherFilesGiveTheSameIds) {
  const ScratchDirectory openai;
  openai.Write("encoder.json", ReadFile(kGpt2 + "/vocab.json"));
  openai.Write("vocab.bpe", ReadFile(kGpt2 + "/merges.txt"));
  ExpectIdsOfTiktoken(**LoadTokenizer(openai.Path(), kPieces));

  std::string lines;
  for (int32_t id = 0; id < kEndOfText; ++id) {
    const std::string_view bytes = Gpt2().PieceBytes(id);
    lines += StrCat(absl::Base64Escape({bytes.data(), bytes.size()}), " ", id, "\n");
  }
  const ScratchDirectory named;
  named.Write("gpt2.tiktoken", lines);
  ExpectIdsOfTiktoken(**LoadTokenizer(named.Path(), kPieces));

  const ScratchDirectory unnamed;
  unnamed.Write("tokenizer.tiktoken", lines);
  EXPECT_THAT(MessageOf(LoadTokenizer(unnamed.Path(), kPieces).status()),
              HasSubstr("tiktoken_pattern"));
  json config{{"tiktoken_pattern", "gpt2"},
              {"added_tokens_decoder", {{"50256", {{"content", "<|endoftext|>"}}}}}};
  unnamed.Write("tokenizer_config.json", config.dump());
  ExpectIdsOfTiktoken(**LoadTokenizer(unnamed.Path(), kPieces));
  config["pad_token"] = "<pad>";
  unnamed.Write("tokenizer_config.json", config.dump());
  EXPECT_THAT(MessageOf(LoadTokenizer(unnamed.Path(), kPieces).status()),
              HasSubstr("the token \"<pad>\" has no id beside tokenizer.tiktoken"));
  config["added_tokens_decoder"] = {{"1x", {{"content", "<|endoftext|>"}}}};
  unnamed.Write("tokenizer_config.json", config.dump());
  EXPECT_THAT(MessageOf(LoadTokenizer(unnamed.Path(), kPieces).status()), HasSubstr("\"1x\""));
}

// A word of a megabyte and a text of added tokens only: neither takes quadratic time.
TEST(ByteLevelTokenizerTest, EncodesLongTexts) {
  const std::string word(1 << 20, 'a');
  EXPECT_EQ(Decode(Gpt2(), Gpt2().Encode(word).value()), word);
  const std::string spaces(1 << 20, ' ');
  EXPECT_EQ(Decode(Gpt2(), Gpt2().Encode(spaces).value()), spaces);
  std::string ends;
  for (int i = 0; i < 50'000; ++i) ends += "<|endoftext|>";
  EXPECT_EQ(Gpt2().Encode(ends).value(), std::vector<int32_t>(50'000, kEndOfText));
}

TEST(ByteLevelTokenizerTest, LongestAddedTokenWins) {
  json file = Gpt2TokenizerJson();
  for (const auto& [id, content] : {std::pair{50257, "<|a|>"}, {50258, "<|a|>b"}}) {
    file["added_tokens"].push_back({{"id", id}, {"content", content}});
  }
  const ScratchDirectory directory;
  directory.Write("tokenizer.json", file.dump());
  const std::unique_ptr<Tokenizer> tokenizer = *LoadTokenizer(directory.Path(), 50259);
  const std::vector<int32_t> ids = tokenizer->Encode("<|a|>c<|a|>b<|a|><|a|").value();
  EXPECT_THAT(std::vector(ids.begin(), ids.begin() + 4), ElementsAre(50257, 66, 50258, 50257));
  EXPECT_EQ(Decode(*tokenizer, ids), "<|a|>c<|a|>b<|a|><|a|");
}

// A vocabulary of the 256 bytes and "<|end|>": the small model's vocab_size, 257.
json Bytes() {
  const json gpt2 = json::parse(ReadFile(kGpt2 + "/vocab.json"));
  json vocab = json::object();
  int32_t id = 0;
  for (const auto& [name, id_of_gpt2] : gpt2.items()) {
    if (id_of_gpt2.get<int32_t>() < 256) vocab[name] = id++;
  }
  vocab["<|end|>"] = 256;
  return vocab;
}

TEST(ByteLevelTokenizerTest, CheckpointLoadsIt) {
  const ScratchDirectory directory;
  directory.CopyFrom(testing::kSmallModel);
  directory.Write("vocab.json", Bytes().dump());
  directory.Write("merges.txt", "#version: 0.2\n");
  directory.Write("tokenizer_config.json", R"({"bos_token": {"content": "<|end|>"}})");
  const std::unique_ptr<Backend> backend = testing::NewBackend("cpu");
  const absl::StatusOr<Checkpoint> checkpoint = LoadCheckpoint(directory.Path(), backend.get(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_NE(checkpoint->tokenizer, nullptr);
  EXPECT_EQ(checkpoint->bos_token, "<|end|>");
  const std::vector<int32_t> ids = checkpoint->tokenizer->Encode("a\u00e9<|end|>").value();
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(ids.back(), 256);
  EXPECT_EQ(Decode(*checkpoint->tokenizer, ids), "a\u00e9");
}

// As transformers keeps them: ids beyond vocab.json, and one that it has.
TEST(ByteLevelTokenizerTest, TokensBesideAreOneId) {
  const ScratchDirectory directory;
  directory.Write("vocab.json", Bytes().dump());
  directory.Write("merges.txt", "");
  directory.Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer",
      "bos_token": "<|end|>", "added_tokens_decoder": {"256": {"content": "<|end|>"},
      "257": {"content": "<|im_start|>"}}})");
  directory.Write("added_tokens.json", R"({"<|im_end|>": 258, "<|im_start|>": 257})");
  const auto tokenizer = LoadTokenizer(directory.Path(), 259);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("<|im_start|><|end|><|im_end|>").value(),
              ElementsAre(257, 256, 258));
}

std::string Rejection(const std::vector<std::pair<std::string, std::string>>& files,
                      int vocab_size = 257) {
  const ScratchDirectory directory;
  for (const auto& [name, text] : files) directory.Write(name, text);
  const absl::Status status = LoadTokenizer(directory.Path(), vocab_size).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return MessageOf(status);
}

TEST(ByteLevelTokenizerTest, ErrorsNameDamagedFiles) {
  const std::string vocab = Bytes().dump();
  EXPECT_THAT(Rejection({{"vocab.json", vocab}}), HasSubstr("merges.txt does not"));
  EXPECT_THAT(Rejection({{"gpt2.tiktoken", "IQ== 0\nIg== x\n"}}), HasSubstr("line 2 must be"));
  EXPECT_THAT(Rejection({{"gpt2.tiktoken", "IQ== 0\n*** 1\n"}}), HasSubstr("line 2 must be"));
  EXPECT_THAT(Rejection({{"gpt2.tiktoken", "IQ== 0\nIg== 257\n"}}), HasSubstr("id 257"));
  EXPECT_THAT(Rejection({{"gpt2.tiktoken", "IQ== 0\n"}}), HasSubstr("no piece for byte 0"));
  EXPECT_THAT(Rejection({{"vocab.json", "{"}, {"merges.txt", ""}}), HasSubstr("not JSON"));
  EXPECT_THAT(Rejection({{"vocab.json", "[]"}, {"merges.txt", ""}}), HasSubstr("object"));
  EXPECT_THAT(Rejection({{"vocab.json", vocab}, {"merges.txt", ""}}, 256),
              AllOf(HasSubstr("<|end|>"), HasSubstr("id 256"), HasSubstr("vocab_size, 256")));
  EXPECT_THAT(Rejection({{"vocab.json", vocab}, {"merges.txt", "#version\na b c\n"}}),
              AllOf(HasSubstr("line 2"), HasSubstr("a b c")));
  EXPECT_THAT(Rejection({{"vocab.json", vocab}, {"merges.txt", "a b\n"}}),
              AllOf(HasSubstr("line 1"), HasSubstr("\"ab\" is not in the vocabulary")));
  json holes = Bytes();
  holes["a"] = holes["b"];
  EXPECT_THAT(Rejection({{"vocab.json", holes.dump()}, {"merges.txt", ""}}),
              AllOf(HasSubstr("\"a\""), HasSubstr("\"b\"")));
  holes["a"] = "one";
  EXPECT_THAT(Rejection({{"vocab.json", holes.dump()}, {"merges.txt", ""}}),
              HasSubstr("no integer id"));
  const auto beside = [&](const char* config) {
    return Rejection(
        {{"vocab.json", vocab}, {"merges.txt", ""}, {"tokenizer_config.json", config}});
  };
  EXPECT_THAT(beside(R"({"tokenizer_class": "Qwen2Tokenizer"})"),
              HasSubstr("tokenizer_class is \"Qwen2Tokenizer\"; without a tokenizer.json"));
  EXPECT_THAT(beside(R"({"add_prefix_space": true})"), HasSubstr("add_prefix_space is true"));
  EXPECT_THAT(beside(R"({"added_tokens_decoder": {"257": {"content": "<|x|>"}}})"),
              HasSubstr("vocab_size, 257"));
  EXPECT_THAT(beside(R"({"added_tokens_decoder": {"-1": {"content": "<|x|>"}}})"),
              HasSubstr("must be an id"));
}

// The ids are those of AutoTokenizer, transformers 5.24 with tokenizers 0.23.
TEST(ByteLevelTokenizerTest, SpecialTokensWithoutIdsGetTheNext) {
  const auto load = [](const std::vector<std::pair<std::string, std::string>>& files,
                       int vocab_size = 262) {
    const ScratchDirectory directory;
    directory.Write("vocab.json", Bytes().dump());
    directory.Write("merges.txt", "#version: 0.2\n");
    for (const auto& [name, text] : files) directory.Write(name, text);
    return LoadTokenizer(directory.Path(), vocab_size);
  };
  const auto ids = [&](const std::vector<std::pair<std::string, std::string>>& files) {
    const auto tokenizer = load(files);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode("<x><y><|end|>").value() : std::vector<int32_t>();
  };
  const std::string config = "tokenizer_config.json", map = "special_tokens_map.json";
  const std::string two = R"({"additional_special_tokens": ["<x>", {"content": "<y>"}]})";
  EXPECT_THAT(ids({{config, two}}), ElementsAre(257, 258, 256));
  EXPECT_THAT(ids({{map, two}}), ElementsAre(257, 258, 256));
  EXPECT_THAT(ids({{config, R"({"additional_special_tokens": ["<x>", "<|end|>"],
                               "pad_token": "<y>"})"}}),
              ElementsAre(258, 257, 256));
  EXPECT_THAT(ids({{config, R"({"additional_special_tokens": ["<x>"]})"},
                   {"added_tokens.json", R"({"<y>": 257})"}}),
              ElementsAre(258, 257, 256));
  EXPECT_THAT(ids({{config, R"({"mask_token": "<x>", "added_tokens_decoder":
                   {"257": {"content": "<y>"}}})"}}),
              ElementsAre(258, 257, 256));

  const auto problem = [&](const std::string& text, int vocab_size) {
    return MessageOf(load({{config, text}}, vocab_size).status());
  };
  EXPECT_THAT(problem(two, 258), AllOf(HasSubstr("vocab.json: lacks \"<y>\""),
                                       HasSubstr("as token 258, but vocab_size of config.json is "
                                                 "258")));
  EXPECT_THAT(problem(R"({"pad_token": "<x>", "added_tokens_decoder":
                          {"259": {"content": "<y>"}}})",
                      262),
              AllOf(HasSubstr("lacks \"<x>\""), HasSubstr("as token 258, or as 260")));
}

TEST(ByteLevelTokenizerTest, AddedTokensThatAreNotSpecialHaveText) {
  const ScratchDirectory directory;
  directory.Write("vocab.json", Bytes().dump());
  directory.Write("merges.txt", "");
  directory.Write("added_tokens.json", R"({"<x>": 257, "<y>": 258})");
  directory.Write("special_tokens_map.json", R"({"pad_token": "<y>"})");
  const auto tokenizer = LoadTokenizer(directory.Path(), 259);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("<y><x>").value(), ElementsAre(258, 257));
  EXPECT_EQ((*tokenizer)->PieceBytes(257), "<x>");
  EXPECT_EQ((*tokenizer)->PieceBytes(258), "");
}

// The ids are those of AutoTokenizer, transformers 5.24 with tokenizers 0.23.
class TokensBesideTokenizerJson : public ::testing::Test {
 protected:
  static json File() {
    json pieces = Bytes();
    pieces.erase("<|end|>");
    return {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
            {"decoder", {{"type", "ByteLevel"}}},
            {"added_tokens", {{{"id", 256}, {"content", "<|end|>"}, {"special", true}}}},
            {"model", {{"type", "BPE"}, {"vocab", pieces}, {"merges", json::array()}}}};
  }
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::vector<std::pair<std::string, std::string>>& files, int vocab_size = 260) {
    const ScratchDirectory directory;
    directory.Write("tokenizer.json", File().dump());
    for (const auto& [name, text] : files) directory.Write(name, text);
    return LoadTokenizer(directory.Path(), vocab_size);
  }
  static std::vector<int32_t> Ids(const std::vector<std::pair<std::string, std::string>>& files,
                                  std::string_view text) {
    const auto tokenizer = Load(files);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode(text).value() : std::vector<int32_t>();
  }
  static std::string Problem(const std::string& config, int vocab_size = 260) {
    return StrCat(Load({{"tokenizer_config.json", config}}, vocab_size).status().message());
  }
};

TEST_F(TokensBesideTokenizerJson, ThoseThatItLacksGetTheNextIds) {
  const std::string config = "tokenizer_config.json", map = "special_tokens_map.json",
                    added = "added_tokens.json";
  EXPECT_THAT(Ids({{config, R"({"added_tokens_decoder": {"256": {"content": "<|end|>"},
      "258": {"content": "<y>"}, "257": {"content": "<x>", "special": false}}})"}},
                  "<y><x><|end|>"),
              ElementsAre(258, 257, 256));
  EXPECT_THAT(Ids({{config, R"({"pad_token": "<pad>", "additional_special_tokens": ["<x>"]})"}},
                  "<x><pad>"),
              ElementsAre(258, 257));
  EXPECT_THAT(Ids({{config, R"({"extra_special_tokens": {"image": "<x>"}})"}}, "<x>"),
              ElementsAre(257));
  EXPECT_THAT(Ids({{map, R"({"pad_token": {"content": "<pad>", "lstrip": false},
      "sep_token": "<sep>", "additional_special_tokens": ["<|end|>", {"content": "<x>"}]})"}},
                  "<x><pad><sep><|end|>"),
              ElementsAre(259, 258, 257, 256));
  EXPECT_THAT(Ids({{added, R"({"<x>": 257})"}}, "<x>"), ElementsAre(257));
  // Beside an added_tokens_decoder neither file is read. A wrong id of a known token counts not.
  EXPECT_EQ(Ids({{config, R"({"added_tokens_decoder": {"7": {"content": "<|end|>"}}})"},
                 {added, R"({"<x>": 257})"},
                 {map, R"({"pad_token": "<y>"})"}},
                "<x><y><|end|>")
                .size(),
            7u);
}

TEST_F(TokensBesideTokenizerJson, TheDecoderSaysWhatIsSpecial) {
  for (const bool is_special : {true, false}) {
    const json decoder = {{"256", {{"content", "<|end|>"}, {"special", is_special}}}};
    const auto tokenizer =
        Load({{"tokenizer_config.json", json{{"added_tokens_decoder", decoder}}.dump()}});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->PieceBytes(256), is_special ? "" : "<|end|>");
  }
}

TEST_F(TokensBesideTokenizerJson, WhatCannotBeAddedIsRefused) {
  EXPECT_THAT(Problem(R"({"added_tokens_decoder": {"259": {"content": "<x>"}}})"),
              AllOf(HasSubstr("lacks \"<x>\""), HasSubstr("as token 257, but it is token 259")));
  EXPECT_THAT(Problem(R"({"pad_token": "<pad>"})", 257),
              AllOf(HasSubstr("lacks \"<pad>\""), HasSubstr("vocab_size of config.json is 257")));
  EXPECT_THAT(Problem(R"({"add_prefix_space": true})"),
              HasSubstr("add_prefix_space is true, but false in the pre_tokenizer"));
  EXPECT_EQ(Problem(R"({"add_prefix_space": false, "pad_token": null})"), "");
}

// As AutoTokenizer of transformers 5.24 encodes "a" with each class: with or without a space.
TEST_F(TokensBesideTokenizerJson, SomeClassesPutNoSpaceWhateverTheFileSays) {
  const auto problem = [](const json& config, bool adds_space) {
    json file = File();
    file["pre_tokenizer"]["add_prefix_space"] = adds_space;
    const ScratchDirectory directory;
    directory.Write("tokenizer.json", file.dump());
    directory.Write("tokenizer_config.json", config.dump());
    return StrCat(LoadTokenizer(directory.Path(), 260).status().message());
  };
  for (const std::string name : {"GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizerFast",
                                 "Qwen2Tokenizer", "CodeGenTokenizer", "BartTokenizer"}) {
    const json config = {{"tokenizer_class", name}};
    EXPECT_THAT(problem(config, true), AllOf(HasSubstr(StrCat("tokenizer_class is \"", name, "\"")),
                                             HasSubstr("write add_prefix_space true")));
    EXPECT_EQ(problem(config, false), "");
    EXPECT_EQ(problem({{"tokenizer_class", name}, {"add_prefix_space", true}}, true), "");
  }
  for (const std::string name : {"PreTrainedTokenizerFast", "BloomTokenizerFast"}) {
    EXPECT_EQ(problem({{"tokenizer_class", name}}, true), "");
  }
  EXPECT_EQ(problem(json::object(), true), "");
}

TEST_F(TokensBesideTokenizerJson, TokensThatTakeSpacesAreRefused) {
  for (const std::string name : {"lstrip", "rstrip", "single_word"}) {
    const json token = {{"content", "<|end|>"}, {name, true}};
    const std::string decoder = json{{"added_tokens_decoder", {{"256", token}}}}.dump();
    EXPECT_THAT(Problem(decoder), HasSubstr(name + " is true, must be false"));
    EXPECT_THAT(Problem(json{{"pad_token", token}}.dump()), HasSubstr(name + " is true"));
    EXPECT_THAT(Rejection({{"vocab.json", Bytes().dump()},
                           {"merges.txt", ""},
                           {"tokenizer_config.json", decoder}}),
                HasSubstr(name + " is true, must be false"));
  }
}

json SplitBy(const std::string& regex, const std::string& behavior = "Isolated") {
  const json split{{"type", "Split"},
                   {"pattern", {{"Regex", regex}}},
                   {"behavior", behavior},
                   {"invert", false}};
  const json byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
}

// Makes `num_steps` times a hundred letters of each "a".
json Enlarge(int num_steps) {
  const json step{
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100, 'a')}};
  return {{"type", "Sequence"}, {"normalizers", json::array_t(size_t(num_steps), step)}};
}

// A template that puts these special tokens around a text; "" stands for the text.
json TemplateOf(const std::vector<std::string>& parts) {
  json single = json::array();
  for (const std::string& part : parts) {
    if (part.empty()) {
      single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    } else {
      single.push_back({{"SpecialToken", {{"id", part}, {"type_id", 0}}}});
    }
  }
  return {{"type", "TemplateProcessing"}, {"single", single}};
}

TEST(ByteLevelTokenizerTest, RefusesPipelinesWithOtherIds) {
  const json good{{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                  {"model", {{"type", "BPE"}, {"vocab", Bytes()}, {"merges", json::array()}}}};
  const std::vector<std::pair<std::function<void(json&)>, std::string>> edits{
      {[](json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       },
       "\"Lowercase\""},
      {[](json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}};
       },
       "pattern: unknown field \"Regex\""},
      {[](json& j) {
         j["normalizer"] = {{"type", "Replace"},
                            {"pattern", {{"String", std::string(1025, 'a')}}},
                            {"content", "b"}};
       },
       "pattern: String has 1025 bytes, must have at most 1024"},
      {[](json& j) {
         j["normalizer"] = {{"type", "Replace"},
                            {"pattern", {{"String", "a"}}},
                            {"content", std::string(1025, 'b')}};
       },
       "content has 1025 bytes, must have at most 1024"},
      {[](json& j) {
         j["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(1025, 'b')}};
       },
       "prepend has 1025 bytes, must have at most 1024"},
      {[](json& j) { j.erase("pre_tokenizer"); }, "decoder is missing"},
      {[](json& j) { j["pre_tokenizer"]["type"] = "Whitespace"; }, "\"Whitespace\""},
      {[](json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}};
       },
       "must be the last"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("a", "MergedWithNext"); }, "\"MergedWithNext\""},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("\\w+"); }, "the escape \\w"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("^a"); }, "\"^\""},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("[a[b]]"); }, "a class in a class"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("\\p{Han}"); }, "the property Han"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("a{1,3}+"); }, "}+"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("a\\p{N}{,2}"); }, "\"{,\" at byte 6"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("a{2}?b"); }, "\"{n}?\" at byte 3"},
      // Oniguruma lets these match another number of characters ("ß").
      {[](json& j) { j["pre_tokenizer"] = SplitBy("a(?i:b(?:ß)|c)"); },
       "a character beyond ASCII in (?i:) at byte 9"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("(?i:k|[a-zſ])"); },
       "a character beyond ASCII in (?i:) at byte 10"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("(?i:aSs)"); }, "\"Ss\" in (?i:) at byte 5"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("(?i:fi)"); }, "\"fi\" in (?i:)"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("(?<=a)b"); }, "the group (?<"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("a*"); }, "may match nothing"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy(""); }, "may match nothing"},
      {[](json& j) { j["pre_tokenizer"] = SplitBy("(a"); }, "not a regular expression"},
      {[](json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", json::array_t(200'000, {{"type", "Digits"}})}};
       },
       "pretokenizers[64]: is step 65, at most 64"},
      {[](json& j) {
         j["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", json::array_t(65, {{"type", "NFC"}})}};
       },
       "normalizers[64]: is step 65, at most 64"},
      {[](json& j) {
         j["normalizer"] = Enlarge(8);
         j["added_tokens"] = {{{"id", 64}, {"content", "a"}, {"normalized", true}}};
       },
       "normalizer makes more than 4112 bytes of a text of 1"},
      {[](json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       },
       "\"BertProcessing\""},
      {[](json& j) {
         j["post_processor"] = TemplateOf({"<s>", ""});
       },
       "add_bos_token"},
      {[](json& j) {
         j["post_processor"] = TemplateOf({"", "</s>"});
       },
       "behind the text"},
      {[](json& j) {
         j["truncation"] = {{"max_length", 5}};
       },
       "truncation must be null"},
      {[](json& j) { j["extra"] = 1; }, "unknown field \"extra\""},
      {[](json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       "\"WordPiece\""},
      {[](json& j) { j.erase("model"); }, "model is missing"},
      {[](json& j) { j["model"]["type"] = "Unigram"; }, "\"Unigram\""},
      {[](json& j) { j["model"].erase("vocab"); }, "vocab and merges"},
      {[](json& j) { j["model"]["dropout"] = 0.1; }, "dropout"},
      {[](json& j) {
         j["model"]["byte_fallback"] = true;
         j["model"]["vocab"].erase("a");
       },
       "byte_fallback"},
      {[](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
      {[](json& j) { j["model"]["merges"] = json::array({"ab"}); }, "merges[0]"},
      {[](json& j) {
         j["model"]["merges"] = json::array({json::array({"a", "b"})});
       },
       "\"ab\" is not in the vocabulary"},
      {[](json& j) {
         j["model"]["vocab"]["<|end|>"] = 255;
         j["model"]["vocab"]["ab"] = 256;
         j["model"]["vocab"].erase("<|end|>");
         j["model"]["merges"] = json::array({"a b", "a b"});
       },
       "merges[1]: merges \"a\" and \"b\" a second time"},
      {[](json& j) {
         j["added_tokens"] = {{{"id", 300}, {"content", "<x>"}}};
       },
       "vocab_size, 257"},
      {[](json& j) {
         j["added_tokens"] = {{{"id", 256}, {"content", "a"}}};
       },
       "the added token \"a\" has id 256, and is piece 64"},
      {[](json& j) {
         j["added_tokens"] = {{{"id", 64}, {"content", "<x>"}}};
       },
       "the added token \"<x>\" has id 64, which is piece \"a\""},
      {[](json& j) {
         j["added_tokens"] = {{{"id", 256}, {"content", ""}}};
       },
       "no content"},
      {[](json& j) {
         j["added_tokens"] = {{{"id", 256}, {"content", std::string(1025, 'x')}}};
       },
       "the added token 256 has 1025 bytes, must have at most 1024"},
      {[](json& j) {
         j["added_tokens"] = {{{"id", 256}, {"content", "<x>"}, {"lstrip", true}}};
       },
       "lstrip"},
  };
  EXPECT_TRUE([&] {
    const ScratchDirectory directory;
    directory.Write("tokenizer.json", good.dump());
    return LoadTokenizer(directory.Path(), 257).ok();
  }());
  for (const auto& [edit, named] : edits) {
    json file = good;
    edit(file);
    EXPECT_THAT(Rejection({{"tokenizer.json", file.dump()}}), HasSubstr(named));
  }
}

// With byte-level pieces and no merges.
std::unique_ptr<Tokenizer> LoadPipeline(const json& normalizer, const json& pre_tokenizer) {
  const ScratchDirectory directory;
  const json file{{"normalizer", normalizer},
                  {"pre_tokenizer", pre_tokenizer},
                  {"model", {{"type", "BPE"}, {"vocab", Bytes()}, {"merges", json::array()}}}};
  directory.Write("tokenizer.json", file.dump());
  return LoadTokenizer(directory.Path(), 257).value();
}

TEST(HostileTokenizerTest, ANormalizerDoesNotFillTheMemory) {
  const auto tokenizer = LoadPipeline(Enlarge(8), SplitBy("b"));
  EXPECT_EQ(tokenizer->Encode("bcd")->size(), 3);
  EXPECT_EQ(tokenizer->Encode(std::string(400, 'b') + "a").status().message(),
            "the tokenizer's normalizer makes more than 10512 bytes of a text of 401");
  EXPECT_EQ(LoadPipeline(Enlarge(1), SplitBy("b"))->Encode("a")->size(), 100);
}

// A match of a hostile pattern may take long: polls come by matches too, not by bytes alone.
TEST(HostileTokenizerTest, AnEncodeStopsBetweenMatches) {
  const auto tokenizer = LoadPipeline(nullptr, SplitBy("(?:a|aa)+b|a"));
  int num_polls = 0;
  const auto stopped =
      tokenizer->Encode(std::string(28, 'a') + "c" + std::string(28, 'a'), [&num_polls] {
        ++num_polls;
        return num_polls == 3;
      });
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
}

// PCRE2's limit counts anew at each byte where a match may begin.
TEST(HostileTokenizerTest, AnEncodeStopsWithinAMatch) {
  for (const std::string pattern : {"a{10000}[bc]", "(?:a{100}){50}[bc]", "a++[bc]"}) {
    const auto tokenizer = LoadPipeline(nullptr, SplitBy(pattern));
    int num_polls = 0;
    const auto stopped = tokenizer->Encode(std::string(30'000, 'a'), [&num_polls] {
      ++num_polls;
      return num_polls == 50;
    });
    EXPECT_TRUE(absl::IsCancelled(stopped.status())) << pattern << ": " << stopped.status();
    EXPECT_EQ(num_polls, 50) << pattern;
  }
}

// At no byte too many for PCRE2.
TEST(HostileTokenizerTest, AMatchOfTooManyStepsInAllIsRefused) {
  const auto tokenizer = LoadPipeline(nullptr, SplitBy("a+?a+?[bc]"));
  const absl::Status status = tokenizer->Encode(std::string(2'000, 'a')).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("at byte 0: the tokenizer's pattern takes too many steps"));
}

TEST(HostileTokenizerTest, AnEncodeStopsWithinAReplacement) {
  const auto polls_of = [](int num_steps) {
    const json step{{"type", "Replace"},
                    {"pattern", {{"String", std::string(1023, 'a') + "b"}}},
                    {"content", ""}};
    const json steps{{"type", "Sequence"}, {"normalizers", json::array_t(size_t(num_steps), step)}};
    int num_polls = 0;
    EXPECT_TRUE(LoadPipeline(steps, SplitBy("b"))
                    ->Encode(std::string(100'000, 'a'),
                             [&num_polls] {
                               ++num_polls;
                               return false;
                             })
                    .ok());
    return num_polls;
  };
  EXPECT_GE(polls_of(8) - polls_of(0), 8 * 100'000 / 4096);
}

// Also where the text to replace stands on both sides of a poll.
TEST(HostileTokenizerTest, ALongTextIsReplacedEverywhere) {
  const json step{{"type", "Replace"}, {"pattern", {{"String", "abc"}}}, {"content", "d"}};
  const auto tokenizer = LoadPipeline(step, SplitBy("b"));
  for (const size_t num_before : {4'090, 4'094, 4'095, 4'096, 8'191}) {
    const std::string before(num_before, 'a');
    const auto ids = tokenizer->Encode(before + "abcabc" + before + "abcab").value();
    EXPECT_EQ(Decode(*tokenizer, ids), before + "dd" + before + "dab");
  }
}

double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

TEST(HostileTokenizerTest, TokensBesideAreReadInLinearTime) {
  const auto seconds_of = [](int num_tokens) {
    json decoder = json::object();
    for (int i = 0; i < num_tokens; ++i) {
      decoder[StrCat(257 + i)] = {{"content", StrCat("<", 100'000 + i, ">")}};
    }
    const ScratchDirectory directory;
    const json file{{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                    {"model", {{"type", "BPE"}, {"vocab", Bytes()}, {"merges", json::array()}}}};
    directory.Write("tokenizer.json", file.dump());
    directory.Write("tokenizer_config.json", json{{"added_tokens_decoder", decoder}}.dump());
    double least = 1e9;
    for (int run = 0; run < 3; ++run) {
      const double begin = CpuSeconds();
      EXPECT_TRUE(LoadTokenizer(directory.Path(), 257 + num_tokens).ok());
      least = std::min(least, CpuSeconds() - begin);
    }
    return least;
  };
  EXPECT_LT(seconds_of(32'000), 9 * seconds_of(8'000));
}

TEST(HostileTokenizerTest, ATextOfTooManyStepsIsRefused) {
  const auto tokenizer = LoadPipeline(nullptr, SplitBy("(?:a|aa)+b|a"));
  const absl::Status status = tokenizer->Encode(std::string(60, 'a') + "c").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("at byte 0: the tokenizer's pattern takes too many steps"));
}

}  // namespace
}  // namespace lssar
