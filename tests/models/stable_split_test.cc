// Splitting and stopping an Encode, of both kinds of tokenizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/str_cat.h"
#include "models/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/models/fixture.h"
#include "tests/models/tokenizer_texts.h"

namespace lssar {
namespace {

using nlohmann::json;
using testing::Gpt2;
using testing::Shipped;

// Words, runs of spaces, other scripts, role tokens, control characters and parts of contractions.
std::string RandomText(std::mt19937& rng, int num_parts) {
  static const std::vector<std::string> parts = {"the",
                                                 "cat",
                                                 " ",
                                                 " ",
                                                 " ",
                                                 "  ",
                                                 "sat",
                                                 "\n",
                                                 "\t",
                                                 "1",
                                                 "23",
                                                 ".",
                                                 ",",
                                                 "'",
                                                 "s",
                                                 "'ll",
                                                 "\u00e9",
                                                 "\u0301",
                                                 "\u65e5\u672c",
                                                 "\U0001f600",
                                                 "<|user|>",
                                                 "<|endoftext|>",
                                                 "A",
                                                 "Bc",
                                                 "\u00a0",
                                                 "\u3000",
                                                 "don't",
                                                 "x y",
                                                 " a b",
                                                 "  q r  "};
  std::string text;
  for (int i = 0; i < num_parts; ++i) text += parts[rng() % parts.size()];
  return text;
}

class StableSplitTest : public ::testing::TestWithParam<bool> {
 protected:
  static const Tokenizer& Get() { return GetParam() ? Gpt2() : Shipped(); }
};

TEST_P(StableSplitTest, KeepsTheIdsWhateverFollows) {
  std::mt19937 rng(7);
  int num_splits = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = RandomText(rng, 1 + int(rng() % 24));
    const std::string more = RandomText(rng, int(rng() % 6));
    const Tokenizer::StableSplit split = Get().SplitStable(text);
    num_splits += split.front.empty() ? 0 : 1;
    std::vector<int32_t> ids = Get().Encode(split.front).value();
    const std::vector<int32_t> rest = Get().Encode(StrCat(split.rest, more)).value();
    ids.insert(ids.end(), rest.begin(), rest.end());
    ASSERT_EQ(ids, Get().Encode(text + more).value()) << text << "|" << more;
  }
  EXPECT_GT(num_splits, 1000);
}

TEST_P(StableSplitTest, AnEncodeStops) {
  std::string text;
  while (text.size() < (size_t{1} << 20)) text += "Once upon a time there was a cat. ";
  int num_polls = 0;
  const auto stopped = Get().Encode(text, [&] { return ++num_polls == 3; });
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
  EXPECT_EQ(num_polls, 3);
  // Behind the search for added tokens and the normalizer, too.
  int num_late_polls = 0;
  const auto stopped_late = Get().Encode(text, [&] { return ++num_late_polls == 200; });
  EXPECT_TRUE(absl::IsCancelled(stopped_late.status())) << stopped_late.status();
}

INSTANTIATE_TEST_SUITE_P(All, StableSplitTest, ::testing::Bool());

// A tokenizer.json over characters, with these normalizers.
std::unique_ptr<Tokenizer> LoadWith(const json& normalizers) {
  json vocab{{"<unk>", 0}, {"\u2581", 1}, {" ", 2}};
  for (const char letter : std::string_view("abcehst")) {
    vocab[std::string(1, letter)] = int(vocab.size());
  }
  const json space{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  const json file{
      {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", {space, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"}, {"unk_token", "<unk>"}, {"vocab", vocab}, {"merges", json::array()}}}};
  const ScratchDirectory directory;
  directory.Write("tokenizer.json", file.dump());
  return LoadTokenizer(directory.Path(), 16).value();
}

// The rest of a split has no space before it only if the normalizer puts exactly that one back.
TEST(PrependedSplitTest, KeepsTheIds) {
  const json escape{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const auto prepend = [](const std::string& text) {
    return json{{"type", "Prepend"}, {"prepend", text}};
  };
  struct Case {
    std::vector<json> normalizers;
    bool splits;
  };
  for (const auto& [normalizers, splits] :
       {Case{{prepend("\u2581"), escape}, true}, Case{{escape, prepend("\u2581")}, true},
        Case{{prepend(" "), escape}, true}, Case{{escape, prepend(" ")}, false},
        Case{{prepend("  "), escape}, false}, Case{{prepend("\u2581 "), escape}, false},
        Case{{prepend("\u2581"), prepend("\u2581"), escape}, false}, Case{{escape}, true}}) {
    const auto tokenizer = LoadWith(normalizers);
    const Tokenizer::StableSplit split = tokenizer->SplitStable("the cat sat");
    EXPECT_EQ(!split.front.empty(), splits) << json(normalizers);
    std::vector<int32_t> ids = tokenizer->Encode(split.front).value();
    const std::vector<int32_t> rest = tokenizer->Encode(split.rest).value();
    ids.insert(ids.end(), rest.begin(), rest.end());
    EXPECT_EQ(ids, tokenizer->Encode("the cat sat").value()) << json(normalizers);
  }
}

// The library gets a long text in parts; the ids are those of the whole.
TEST(SentencePiecePartsTest, GiveTheIdsOfTheWhole) {
  std::mt19937 rng(3);
  std::string text;
  while (text.size() < 40'000) text += RandomText(rng, 30);
  std::vector<int32_t> ids;
  const auto encode = [&ids](std::string_view part) {
    const std::vector<int32_t> more = Shipped().Encode(part).value();
    ids.insert(ids.end(), more.begin(), more.end());
  };
  std::string_view rest = text;
  while (rest.size() > 3000) {
    const Tokenizer::StableSplit split = Shipped().SplitStable(rest.substr(0, 3000));
    ASSERT_FALSE(split.front.empty());
    encode(split.front);
    rest.remove_prefix(split.front.size() + 1);
  }
  encode(rest);
  EXPECT_EQ(ids, Shipped().Encode(text).value());
}

TEST(SentencePiecePartsTest, AnEndlessWordIsEncoded) {
  const std::string word((size_t{1} << 20) + 1, 'a');
  EXPECT_EQ(Decode(Shipped(), Shipped().Encode(word).value()), word);
}

TEST(MaxPieceBytesTest, CountsSpecialTokens) {
  EXPECT_GE(Shipped().MaxPieceBytes(), 13);  // <|assistant|>
  EXPECT_GE(Gpt2().MaxPieceBytes(), 13);     // <|endoftext|>
}

}  // namespace
}  // namespace lssar
