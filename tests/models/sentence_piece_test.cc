// SentencePiece models: ids and texts compared with the library's, and files that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "base/utf8.h"
#include "models/text/character_map.h"
#include "models/text/sentence_piece_file.h"
#include "models/text/tokenizer.h"
#include "tests/models/fixture.h"
#include "tests/models/sentence_piece_library.h"
#include "tests/models/tokenizer_texts.h"

namespace lssar {
namespace {

using testing::DocumentLines;
using ::testing::HasSubstr;
using testing::MessageOf;
using testing::RandomText;
using testing::SentencePieceLibrary;

using Options = std::unordered_map<std::string, std::string>;

std::unique_ptr<Tokenizer> LoadFile(std::string_view file, int vocab_size) {
  const ScratchDirectory directory;
  directory.Write("tokenizer.model", file);
  auto tokenizer = LoadTokenizer(directory.Path(), vocab_size);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// The ids of a long text. A unigram model maximises the sum of its pieces' scores, and the library
// keeps the sum so far in fp32: far into a text its rounding decides between segmentations that are
// nearly as good, and a cut begins it anew.
void ExpectSameOrEquallyGood(const std::vector<int32_t>& ids, const std::vector<int>& expected,
                             const SentencePieceFile& file, const SentencePieceLibrary& library) {
  if (file.model_type != SentencePieceFile::ModelType::kUnigram) {
    EXPECT_EQ(ids, expected);
    return;
  }
  EXPECT_EQ(library.Decode(ids), library.Decode(expected));
  const auto score = [&](const std::vector<int32_t>& pieces) {
    double sum = 0;
    for (const int32_t id : pieces) sum += double{file.pieces.at(size_t(id)).score};
    return sum;
  };
  EXPECT_EQ(std::ranges::count(ids, file.unknown_id),
            std::ranges::count(expected, file.unknown_id));
  EXPECT_NEAR(score(ids), score(expected), 1e-6 * std::fabs(score(expected)));
}

void ExpectIdsOfTheLibrary(const std::string& file, int num_texts) {
  const SentencePieceLibrary library(file);
  const auto tokenizer = LoadFile(file, library.NumPieces());
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 rng(5);
  for (int i = 0; i < num_texts; ++i) {
    const std::string text = RandomText(&rng, int(rng() % 40));
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(*ids, library.Encode(text)) << text;
    // The library replaces ill-formed bytes one by one, strips every leading space where the model
    // removes extra ones, and keeps that of an unknown piece; elsewhere the texts are the same.
    const std::string decoded = Decode(*tokenizer, *ids), other = library.Decode(*ids);
    if (decoded.find(kReplacementCharacter) == decoded.npos && !decoded.starts_with(' ') &&
        !other.starts_with(' ')) {
      ASSERT_EQ(decoded, other) << text;
    }
  }
  std::string document;
  for (const std::string& line : DocumentLines()) document += line + "\n";
  const auto parsed = ParseSentencePieceFile(file, "m", library.NumPieces()).value();
  ExpectSameOrEquallyGood(tokenizer->Encode(document).value(), library.Encode(document), parsed,
                          library);
}

TEST(SentencePieceTest, ShippedModelGivesTheIdsOfTheLibrary) {
  ExpectIdsOfTheLibrary(testing::ReadFile(std::string(testing::kShippedModel) + "/tokenizer.model"),
                        2000);
}

// A model trained on this project's documents.
const std::string& Trained(const std::string& name) {
  const std::string symbols = "<|user|>,<|end|>,  ,\xE2\x96\x81\xE2\x96\x81";
  static const std::unordered_map<std::string, Options> trainings{
      {"bpe nfkc", {{"model_type", "bpe"}, {"vocab_size", "500"}}},
      {"bpe identity bytes",
       {{"model_type", "bpe"},
        {"vocab_size", "700"},
        {"normalization_rule_name", "identity"},
        {"byte_fallback", "true"},
        {"remove_extra_whitespaces", "false"},
        {"user_defined_symbols", symbols}}},
      {"bpe suffix",
       {{"model_type", "bpe"},
        {"vocab_size", "500"},
        {"treat_whitespace_as_suffix", "true"},
        {"normalization_rule_name", "nmt_nfkc_cf"}}},
      {"bpe across spaces",
       {{"model_type", "bpe"}, {"vocab_size", "600"}, {"split_by_whitespace", "false"}}},
      {"unigram nfkc", {{"model_type", "unigram"}, {"vocab_size", "400"}}},
      {"unigram bytes",
       {{"model_type", "unigram"},
        {"vocab_size", "700"},
        {"byte_fallback", "true"},
        {"add_dummy_prefix", "false"},
        {"remove_extra_whitespaces", "false"},
        {"user_defined_symbols", symbols}}},
      {"char", {{"model_type", "char"}, {"vocab_size", "120"}}},
  };
  static std::unordered_map<std::string, std::string> files;
  std::string& file = files[name];
  if (file.empty()) file = testing::TrainSentencePiece(DocumentLines(), trainings.at(name));
  return file;
}

class TrainedModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TrainedModelTest, GivesTheIdsOfTheLibrary) {
  ExpectIdsOfTheLibrary(Trained(GetParam()), 600);
}

// A text without a space, of characters that the model has and of others.
TEST_P(TrainedModelTest, EncodesLongWords) {
  const auto tokenizer = LoadFile(Trained(GetParam()), 1000);
  ASSERT_NE(tokenizer, nullptr);
  std::string unknown;
  for (int i = 0; i < 100'000; ++i) unknown += "\u65e5";
  for (const std::string& text : {std::string(300'000, 'a'), std::string(300'000, ' '), unknown}) {
    EXPECT_TRUE(tokenizer->Encode(text).ok());
  }
}

// Texts that are encoded in several parts.
TEST_P(TrainedModelTest, CutsChangeNoId) {
  const std::string& file = Trained(GetParam());
  const SentencePieceLibrary library(file);
  const auto tokenizer = LoadFile(file, library.NumPieces());
  ASSERT_NE(tokenizer, nullptr);
  const auto parsed = ParseSentencePieceFile(file, "m", library.NumPieces()).value();
  std::mt19937 rng(17);
  for (int i = 0; i < 20; ++i) {
    std::string text = RandomText(&rng, 3000);
    if (i % 2 == 1) {
      for (int j = 0; j < 9000; ++j) text += j % 7 == 0 ? "\u65e5 " : "\u672c";  // unknown
    }
    ASSERT_GT(text.size(), 3 * size_t{Tokenizer::kEncodePollBytes});
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ExpectSameOrEquallyGood(*ids, library.Encode(text), parsed, library);
  }
}

TEST(SentencePieceTest, AMarkInATextIsRefused) {
  const auto tokenizer = LoadTokenizer(std::string(testing::kShippedModel), 4096).value();
  EXPECT_TRUE(tokenizer->Encode("a \uFDD0\uFDEF b").ok());
  EXPECT_THAT(MessageOf(tokenizer->Encode("a \uFDD0\uFDEF\uFDD1\uFDEE b").status()),
              HasSubstr("U+FDD0 U+FDEF U+FDD1 U+FDEE"));
}

INSTANTIATE_TEST_SUITE_P(All, TrainedModelTest,
                         ::testing::Values("bpe nfkc", "bpe identity bytes", "bpe suffix",
                                           "bpe across spaces", "unigram nfkc", "unigram bytes",
                                           "char"));

double ThreadCpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

TEST(SentencePieceTest, StopsWithinMilliseconds) {
  std::string text;
  while (text.size() < 4'000'000) text += "attention\u65e5";
  for (const char* name : {"bpe nfkc", "unigram nfkc"}) {
    const auto tokenizer = LoadFile(Trained(name), 1000);
    // The best of three: a machine may stall between two polls.
    double least = 1e9;
    for (int run = 0; run < 3 && least >= 0.25; ++run) {
      int num_polls = 0;
      double last = 0, longest = 0;
      const auto stopped = tokenizer->Encode(text, [&] {
        const double now = ThreadCpuSeconds();
        if (num_polls > 0) longest = std::max(longest, now - last);
        last = now;
        return ++num_polls == 900;
      });
      EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
      least = std::min(least, longest);
    }
    EXPECT_LT(least, 0.25) << "CPU seconds between two polls";
  }
}

TEST(SentencePieceTest, VocabSizeMayBePadded) {
  const std::string& file = Trained("bpe nfkc");
  const SentencePieceLibrary library(file);
  const auto padded = LoadFile(file, library.NumPieces() + 7);
  EXPECT_EQ(padded->VocabSize(), library.NumPieces() + 7);
  EXPECT_EQ(padded->PieceBytes(library.NumPieces() + 6), "");
  EXPECT_EQ(padded->Encode("padded").value(), library.Encode("padded"));
}

// A tokenizer.model by hand.
std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += char(0x80 | (value & 0x7F));
  return bytes += char(value);
}
std::string Bytes(int field, std::string_view bytes) {
  return Varint(uint64_t(field) << 3 | 2).append(Varint(bytes.size())).append(bytes);
}
std::string Number(int field, uint64_t value) {
  return Varint(uint64_t(field) << 3) + Varint(value);
}
std::string Float(int field, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return Varint(uint64_t(field) << 3 | 5) + bytes;
}
std::string PieceOf(std::string_view text, int type = 1, float score = -1) {
  return Bytes(1, Bytes(1, text) + Float(2, score) + Number(3, uint64_t(type)));
}
// A double array with these units at the start, and replacements.
std::string CharacterMapOf(const std::vector<std::pair<size_t, uint32_t>>& units,
                           std::string_view replacements) {
  constexpr size_t kNumUnits = 512;
  std::vector<uint32_t> array(kNumUnits, 0x80000000u);
  for (const auto& [index, unit] : units) array[index] = unit;
  std::string blob(4 + 4 * kNumUnits, '\0');
  const auto num_bytes = uint32_t(4 * kNumUnits);
  std::memcpy(blob.data(), &num_bytes, 4);
  std::memcpy(blob.data() + 4, array.data(), 4 * kNumUnits);
  return blob.append(replacements);
}

// Unit 0 has the root's base, 256, as its offset from bit 10 on. A unit at base ^ c has the label c
// in its low byte, and in bit 8 whether a value is at its own base.
constexpr uint32_t kRootUnit = 256u << 10;
constexpr size_t kUnitOfA = 256 + 'a', kUnitOfB = 256 + 'b';
// "a" becomes the replacement at byte 2. The base of its unit is kUnitOfB.
const std::vector<std::pair<size_t, uint32_t>> kRuleForA{
    {0, kRootUnit},
    {kUnitOfA, 'a' | 1u << 8 | uint32_t('a' ^ 'b') << 10},
    {kUnitOfB, 0x80000000u | 2}};

// The library would encode these texts as it loads the file, in quadratic time, and refuse it.
TEST(SentencePieceTest, SelfTestDataIsNotForTheLibrary) {
  const std::string file = Trained("bpe nfkc");
  const std::string samples = Bytes(4, Bytes(1, Bytes(1, "attention") + Bytes(2, "no such piece")));
  const auto tokenizer = LoadFile(samples + file + samples, 1000);
  EXPECT_EQ(tokenizer->Encode("attention").value(),
            LoadFile(file, 1000)->Encode("attention").value());
  EXPECT_EQ(WithoutSelfTest(samples + file + samples), file);
}

std::string RejectionOfFile(std::string_view file) {
  const auto parsed = ParseSentencePieceFile(file, "m", 300);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return MessageOf(parsed.status());
}

TEST(SentencePieceFileTest, ErrorsNameFieldAndValue) {
  const std::string unk = PieceOf("<unk>", 2);
  const std::string good = unk + PieceOf("a") + PieceOf("b");
  EXPECT_TRUE(ParseSentencePieceFile(good, "m", 300).ok());
  EXPECT_THAT(RejectionOfFile(""), HasSubstr("no pieces"));
  EXPECT_THAT(RejectionOfFile("not a model"), HasSubstr("damaged at byte 0 of 11"));
  EXPECT_THAT(RejectionOfFile(good.substr(0, good.size() - 1)), HasSubstr("damaged at byte"));
  EXPECT_THAT(RejectionOfFile(PieceOf("a")), HasSubstr("no unknown piece"));
  EXPECT_THAT(RejectionOfFile(unk + PieceOf("<u>", 2)), HasSubstr("second unknown piece"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("a")), HasSubstr("pieces[3], \"a\", occurs twice"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("c", 1, NAN)), HasSubstr("pieces[3]: score is nan"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("c", 1, INFINITY)), HasSubstr("score is inf"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("c", 7)), HasSubstr("type is 7, must be 1 to 6"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("")), HasSubstr("0 bytes"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf(std::string(1025, 'x'))), HasSubstr("1025 bytes"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("\xff")), HasSubstr("UTF-8"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf(std::string("x\0", 2))), HasSubstr("NUL"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("c", 3)), HasSubstr("control piece of one character"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("<0x00>", 6)), HasSubstr("byte_fallback is false"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("<0x0a>", 6)), HasSubstr("<0x00> to <0xFF>"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("<0x00>", 6) + Bytes(2, Number(35, 1))),
              HasSubstr("1 byte pieces, must have 256"));
  EXPECT_THAT(RejectionOfFile(good + Bytes(2, Number(3, 3))), HasSubstr("model_type is 3"));
  EXPECT_THAT(RejectionOfFile(good + Bytes(2, Number(3, 2) + Number(3, 1))),
              HasSubstr("field 3 occurs twice"));
  EXPECT_THAT(RejectionOfFile(good + Bytes(2, Bytes(3, "x"))), HasSubstr("must be varint"));
  EXPECT_THAT(RejectionOfFile(good + PieceOf("c", 5) + Bytes(2, Number(3, 2))),
              HasSubstr("is unused"));
  EXPECT_THAT(RejectionOfFile(good + Bytes(3, "") + Bytes(3, "")),
              HasSubstr("field 3 occurs twice"));
  EXPECT_THAT(RejectionOfFile(good + Bytes(3, Number(9, 1))),
              HasSubstr("normalizer_spec: field 9"));
  EXPECT_THAT(RejectionOfFile(good + Bytes(5, Bytes(2, "x"))), HasSubstr("denormalizer_spec"));
  EXPECT_THAT(RejectionOfFile(good + Number(1, 3)), HasSubstr("field 1 is varint"));
  std::string many = unk;
  for (int i = 0; i < 300; ++i) many += PieceOf(StrCat("p", i));
  EXPECT_THAT(RejectionOfFile(many), HasSubstr("more than 300 pieces"));
}

TEST(CharacterMapTest, ErrorsNameOffsets) {
  const auto refusal = [](const std::string& blob) {
    return MessageOf(CharacterMap::Parse(blob).status());
  };
  const std::string nul("\0", 1);
  const auto map = CharacterMap::Parse(CharacterMapOf(kRuleForA, std::string("x\0yz\0", 5)));
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->Match("abc").num_bytes, 1u);
  EXPECT_EQ(map->Match("abc").replacement, "yz");
  EXPECT_EQ(map->Match("b").num_bytes, 0u);

  EXPECT_THAT(refusal("abc"), HasSubstr("has 3 bytes"));
  EXPECT_THAT(refusal(std::string("\xff\xff\0\0zzzz", 8)), HasSubstr("array has 65535 bytes"));
  EXPECT_THAT(refusal(CharacterMapOf(kRuleForA, "yz")), HasSubstr("do not end with NUL"));
  EXPECT_THAT(refusal(CharacterMapOf(kRuleForA, std::string("\xff\0", 2))), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(CharacterMapOf(kRuleForA, std::string(257, 'x') + '\0')),
              HasSubstr("257 bytes"));
  EXPECT_THAT(refusal(CharacterMapOf(kRuleForA, nul)),
              HasSubstr("replacement at 2 is not a text in its 1"));
  EXPECT_THAT(refusal(CharacterMapOf({{0, 1000u << 10}}, nul)),
              HasSubstr("unit 1000 is outside of its array of 512"));
  EXPECT_THAT(refusal(CharacterMapOf({{0, kRootUnit}, {kUnitOfA, 'a' | 4096u << 10}}, nul)),
              HasSubstr("outside of its array"));
  // "a" leads back to the root's base.
  EXPECT_THAT(refusal(CharacterMapOf({{0, kRootUnit}, {kUnitOfA, 'a' | uint32_t('a') << 10}}, nul)),
              HasSubstr("endless"));
}

TEST(CharacterMapTest, LongReplacementsDoNotFillTheMemory) {
  const std::string map =
      CharacterMapOf(kRuleForA, std::string("x\0", 2) + std::string(256, 'x') + '\0');
  const auto tokenizer =
      LoadFile(PieceOf("<unk>", 2) + PieceOf("x") + Bytes(3, Bytes(2, map)), 300);
  EXPECT_EQ(tokenizer->Encode("a b")->size(), 1 + 256 + 1);  // unknown: the prefix, " b"
  EXPECT_EQ(MessageOf(tokenizer->Encode(std::string(1000, 'a')).status()),
            "the tokenizer's normalizer makes more than 20096 bytes of a text of 1000");
}

// One unknown id stands for a run of unknown characters, and a space that is no piece is a part of
// the run: a text is not split there.
TEST(SentencePieceSplitTest, SpacesThatAreNoPiecesDoNotSplit) {
  for (const int model_type : {2, 4}) {
    for (const bool has_space : {false, true}) {
      const auto tokenizer = LoadFile(PieceOf("<unk>", 2) + PieceOf("b") +
                                          (has_space ? PieceOf("\xE2\x96\x81") : std::string()) +
                                          Bytes(2, Number(3, uint64_t(model_type))),
                                      300);
      ASSERT_NE(tokenizer, nullptr);
      const Tokenizer::StableSplit split = tokenizer->SplitStable("xx yy");
      EXPECT_EQ(!split.front.empty(), has_space);
      std::vector<int32_t> ids = tokenizer->Encode(split.front).value();
      const std::vector<int32_t> rest = tokenizer->Encode(split.rest).value();
      ids.insert(ids.end(), rest.begin(), rest.end());
      EXPECT_EQ(ids, tokenizer->Encode("xx yy").value());
    }
  }
}

// Mutants of a file at the places that hold offsets, sizes, types and scores, and anywhere.
std::string Mutate(const std::string& file, std::mt19937* rng) {
  std::string mutant = file;
  const auto random_byte = [&] { return char((*rng)()); };
  const auto anywhere = [&] { return (*rng)() % mutant.size(); };
  switch ((*rng)() % 8) {
    case 0:  // a few bytes anywhere
      for (uint32_t left = 1 + uint32_t((*rng)() % 8); left > 0; --left) {
        mutant[anywhere()] = random_byte();
      }
      break;
    case 1: mutant.resize(anywhere()); break;
    case 2: mutant.erase(anywhere(), 1 + (*rng)() % 64); break;
    case 3: mutant.insert(anywhere(), std::string(1 + (*rng)() % 64, random_byte())); break;
    default: {
      // The character map: field 2 of the message in field 3, found by its array's size. Half of
      // these mutants change whole units of the array.
      const size_t map = mutant.rfind("nmt_nfkc");
      const size_t begin = map == mutant.npos ? 0 : map;
      const auto at = [&] { return begin + (*rng)() % (mutant.size() - begin); };
      if ((*rng)() % 2 == 0) {
        for (uint32_t left = 1 + uint32_t((*rng)() % 64); left > 0; --left) {
          const size_t unit = std::min(at(), mutant.size() - 4);
          for (size_t i = 0; i < 4; ++i) mutant[unit + i] = random_byte();
        }
      } else {
        const size_t from = at();
        const size_t size = std::min(mutant.size() - from, size_t((*rng)() % 4096));
        for (size_t i = 0; i < size; ++i) mutant[from + i] = random_byte();
      }
    }
  }
  return mutant;
}

// Every mutant is refused with a reason, or encodes and decodes any text.
TEST(SentencePieceFileTest, MutantsDoNoHarm) {
  std::mt19937 rng(11);
  std::string texts;
  for (int i = 0; i < 12; ++i) texts += RandomText(&rng, 30);
  const ScratchDirectory directory;
  int num_loaded = 0;
  const char* const count = std::getenv("LSSAR_NUM_MUTANTS");
  const int num_mutants = count == nullptr ? 1000 : std::atoi(count);
  for (int i = 0; i < num_mutants; ++i) {
    const char* const names[] = {"unigram nfkc", "bpe nfkc", "unigram bytes", "bpe suffix"};
    directory.Write("tokenizer.model", Mutate(Trained(names[i % 4]), &rng));
    const auto tokenizer = LoadTokenizer(directory.Path(), 1000);
    if (!tokenizer.ok()) {
      ASSERT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++num_loaded;
    const auto ids = (*tokenizer)->Encode(texts);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (const int32_t id : *ids) ASSERT_LT(id, 1000);
    EXPECT_FALSE(FindInvalidUtf8(Decode(**tokenizer, *ids)));
  }
  EXPECT_GE(num_loaded, num_mutants / 200);
  EXPECT_LT(num_loaded, num_mutants * 99 / 100);
}

}  // namespace
}  // namespace lssar
