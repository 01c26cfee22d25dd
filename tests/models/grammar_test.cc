// Masks of grammars, against PCRE2's partial matches; limits; sources that are refused. Skipped in
// a build without xgrammar.
#include "models/text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/str_cat.h"
#include "kernels/sampling.h"
#include "tests/support/fake_model.h"
#include "tests/support/regex_oracle.h"

namespace lssar {
namespace {

using Kind = GrammarSource::Kind;
using ::testing::HasSubstr;

// Pieces that end within characters, a special token with a text, and ids without bytes.
// é is C3 A9, 😀 is F0 9F 98 80.
constexpr int32_t kOddEos = 2;
std::unique_ptr<Tokenizer> OddTokenizer() {
  return std::make_unique<PieceTokenizer>(std::vector<std::string>{"",
                                                                   "",
                                                                   "</s>",
                                                                   "<|user|>",
                                                                   "a",
                                                                   "b",
                                                                   "ab",
                                                                   "\xC3",
                                                                   "\xA9",
                                                                   "\xF0\x9F",
                                                                   "\x98\x80",
                                                                   "\xC3\xA9",
                                                                   "\xA9"
                                                                   "a",
                                                                   "\"",
                                                                   "{",
                                                                   "}",
                                                                   "[",
                                                                   "]",
                                                                   ":",
                                                                   ",",
                                                                   "1",
                                                                   "0",
                                                                   "12",
                                                                   " ",
                                                                   "a\"",
                                                                   "true",
                                                                   "null",
                                                                   "\n",
                                                                   "<",
                                                                   "|",
                                                                   "user",
                                                                   ">",
                                                                   "\xFF"},
                                          /*special=*/3);
}

struct Vocabulary {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  int num_ids = 0;
  std::vector<int32_t> ending_ids;
};

const std::vector<Vocabulary>& Vocabularies() {
  static const auto* const all = [] {
    auto* const list = new std::vector<Vocabulary>;
    list->push_back({.name = "sentencepiece",
                     .tokenizer = LoadTokenizer("models/zoo/lssar-6m", 4096).value(),
                     .num_ids = 4096,
                     .ending_ids = {}});
    // Padding behind the pieces, which is never sampled.
    list->push_back({.name = "gpt2",
                     .tokenizer = LoadTokenizer("tests/models/gpt2", 50304).value(),
                     .num_ids = 50257,
                     .ending_ids = {50256}});
    list->push_back(
        {.name = "odd", .tokenizer = OddTokenizer(), .num_ids = 33, .ending_ids = {kOddEos}});
    return list;
  }();
  return *all;
}

const GrammarCompiler& CompilerOf(const Vocabulary& vocabulary) {
  static auto* const compilers = new std::map<std::string, std::unique_ptr<GrammarCompiler>>;
  auto& compiler = (*compilers)[vocabulary.name];
  if (compiler == nullptr) {
    compiler = std::make_unique<GrammarCompiler>(*vocabulary.tokenizer, vocabulary.num_ids,
                                                 vocabulary.ending_ids);
  }
  return *compiler;
}

class GrammarTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!GrammarCompiler::IsAvailable()) GTEST_SKIP() << "this build has no xgrammar";
  }
  static absl::StatusOr<std::shared_ptr<const Grammar>> Compile(Kind kind, std::string text,
                                                                int vocabulary = 0) {
    return CompilerOf(Vocabularies()[size_t(vocabulary)])
        .Compile({.kind = kind, .text = std::move(text)});
  }
  static std::string Refusal(Kind kind, std::string text, int vocabulary = 0) {
    const auto grammar = Compile(kind, std::move(text), vocabulary);
    EXPECT_FALSE(grammar.ok());
    return std::string(grammar.status().message());
  }
};

// Walks at random through texts that fit, and compares each mask.
void ExpectMasks(const Vocabulary& vocabulary, const Grammar& grammar, const RegexOracle& oracle,
                 int num_walks) {
  const Tokenizer& tokenizer = *vocabulary.tokenizer;
  std::vector<uint32_t> mask(NumMaskWords(size_t(vocabulary.num_ids)), 0xffffffffu);
  uint64_t random = 7;
  for (int walk = 0; walk < num_walks; ++walk) {
    const auto matcher = grammar.NewMatcher();
    std::string text;
    for (int step = 0; step < 12; ++step) {
      ASSERT_EQ(matcher->FillMask(mask), absl::OkStatus());
      EXPECT_EQ(matcher->IsComplete(), oracle.Matches(text)) << text;
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocabulary.num_ids; ++id) {
        const std::string piece(tokenizer.PieceBytes(id));
        const bool has_text = !piece.empty() &&
                              std::ranges::count(vocabulary.ending_ids, id) == 0 &&
                              tokenizer.FindSpecialToken(piece) != id;
        const bool expected = has_text && oracle.Begins(text + piece);
        ASSERT_EQ(MaskHas(mask, size_t(id)), expected) << "'" << text << "' then '" << piece << "'";
        if (expected) allowed.push_back(id);
      }
      for (size_t id = size_t(vocabulary.num_ids); id < 32 * mask.size(); ++id) {
        EXPECT_FALSE(MaskHas(mask, id)) << "beyond the vocabulary";
      }
      if (allowed.empty()) break;
      random = FakeHash(random, uint64_t(step));
      const int32_t id = allowed[random % allowed.size()];
      ASSERT_TRUE(*matcher->Accept(id));
      text += tokenizer.PieceBytes(id);
    }
  }
}

TEST_F(GrammarTest, MasksAreThePrefixesOfARegex) {
  for (const char* pattern : {
           "[a-z]+ [0-9]{2,4}",
           "(cat|dog|caterpillar)( and (cat|dog))*",
           "-?(0|[1-9][0-9]*)(\\.[0-9]+)?",
           "\\d{4}-\\d{2}-\\d{2}",
           "[A-Z][a-z]*( [A-Z][a-z]*){0,3}[.!?]",
           "(a|ab)(a\"|b)*",
           "\xC3\xA9(a|\xF0\x9F\x98\x80)*",
           // Classes that begin with an escaped ^, and escapes of two digits.
           "[\\^a]b",
           "[\\x5eab]+x",
           "[\\^-z]\\x41b",
       }) {
    for (const Vocabulary& vocabulary : Vocabularies()) {
      SCOPED_TRACE(StrCat(pattern, ", ", vocabulary.name));
      const auto grammar = CompilerOf(vocabulary).Compile({.kind = Kind::kRegex, .text = pattern});
      if (!grammar.ok()) {
        EXPECT_EQ(vocabulary.name, "odd") << grammar.status();
        EXPECT_THAT(grammar.status().message(), HasSubstr("fitted by no text"));
        continue;
      }
      ExpectMasks(vocabulary, **grammar, RegexOracle(pattern), vocabulary.num_ids > 10000 ? 2 : 8);
    }
  }
}

TEST(PrepareRegexTest, ClassesThatBeginWithACaretAndEscapesOfTwoDigits) {
  const std::pair<const char*, const char*> cases[] = {
      {"[\\^a]", "(?:\\^|[a])"},
      {"[\\^]x", "\\^x"},
      {"[\\^\\^^a]{2}", "(?:\\^|[a]){2}"},
      {"[\\u005e\\]]", "(?:\\^|[\\]])"},
      {"[\\u{05E}[]", "(?:\\^|[[])"},
      {"[\\x5ea]\\x41b", "(?:\\^|[a])\\u0041b"},
      {"[\\^-z]", "(?:\\^|[_-z])"},
      {"[\\^-]", "(?:\\^|[-])"},
      {"\\\\[\\^]", "\\\\\\^"},
      // These are read as they are.
      {"[^\\^a]", "[^\\^a]"},
      {"[a\\^[\\^]", "[a\\^[\\^]"},
      {"\\[\\^a]", "\\[\\^a]"},
      {"\\\\x41", "\\\\x41"},
      {"\\x4g\\u005", "\\x4g\\u005"},
      {"[\\^", "(?:\\^|["},
      {"a\\", "a\\"},
      {"[", "["},
      {"", ""},
  };
  for (const auto& [regex, prepared] : cases) EXPECT_EQ(PrepareRegex(regex), prepared) << regex;
}

TEST_F(GrammarTest, MasksAreThoseOfChoicesGrammarsAndSchemas) {
  const std::vector<std::string> choices = {"yes", "no", "n\"o\\\n", "\xC3\xA9tat",
                                            "a",   "ab", "\nbc",     "\\x41b"};
  const std::string any = "(?:yes|no|n\"o\\\\\n|\xC3\xA9tat|a|ab|\nbc|\\\\x41b)";
  const GrammarSource schema = {.kind = Kind::kJsonSchema,
                                .text = R"({"type":"array","items":{"enum":[1,12,true]}})"};
  // White space within JSON, at most 32 of it in a row.
  const std::string s = "[ \n\t\r]{0,32}";
  const std::string item = "(?:1|12|true)";
  const GrammarSource grammar = {.kind = Kind::kEbnf,
                                 .text = "root ::= \"a\" b* (\"12\" | b b)\nb ::= [ab]\n"};
  const std::vector<std::pair<GrammarSource, std::string>> cases = {
      {ChoiceSource(choices), any},
      {schema, StrCat("\\[(?:", s, item, "(?:", s, ",", s, item, ")*)?", s, "\\]")},
      {grammar, "a[ab]*(12|[ab][ab])"},
      {{.kind = Kind::kEbnf, .text = R"(root ::= "\x61b\\x61" [\x5eb])"}, "ab\\\\x61[\\^b]"},
  };
  for (const auto& [source, pattern] : cases) {
    for (const Vocabulary& vocabulary : Vocabularies()) {
      SCOPED_TRACE(StrCat(source.text, ", ", vocabulary.name));
      const auto compiled = CompilerOf(vocabulary).Compile(source);
      ASSERT_TRUE(compiled.ok()) << compiled.status();
      ExpectMasks(vocabulary, **compiled, RegexOracle(pattern), vocabulary.num_ids > 10000 ? 2 : 8);
    }
  }
}

TEST_F(GrammarTest, MasksOfASchemaOrAText) {
  const GrammarSource source = {
      .kind = Kind::kJsonSchemaOrText,
      .text = R"({"type":"object","properties":{"a":{"enum":[1,12,true]}},"required":["a"],)"
              R"("additionalProperties":false})"};
  const std::string s = "[ \n\t\r]{0,32}";
  const std::string json =
      StrCat("[ \n\t\r]*\\{", s, "\"a\"", s, ":", s, "(?:1|12|true)", s, "\\}");
  // Characters in UTF-8; a text begins with none that is white space or "{".
  const std::string t = "[\\x80-\\xBF]";
  const std::string beyond_ascii =
      StrCat("[\\xC2-\\xDF]", t, "|\\xE0[\\xA0-\\xBF]", t, "|[\\xE1-\\xEC\\xEE\\xEF]", t,
             "{2}|\\xED", "[\\x80-\\x9F]", t, "|\\xF0[\\x90-\\xBF]", t, "{2}|[\\xF1-\\xF3]", t,
             "{3}|\\xF4", "[\\x80-\\x8F]", t, "{2}");
  const std::string text = StrCat("[ \n\t\r]*(?:(?:(?![{ \n\t\r])[\\x00-\\x7F]|", beyond_ascii,
                                  ")(?:[\\x00-\\x7F]|", beyond_ascii, ")*)?");
  const RegexOracle oracle(StrCat("(?:", json, "|", text, ")"));
  for (const Vocabulary& vocabulary : Vocabularies()) {
    SCOPED_TRACE(vocabulary.name);
    const auto compiled = CompilerOf(vocabulary).Compile(source);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    ExpectMasks(vocabulary, **compiled, oracle, vocabulary.num_ids > 10000 ? 2 : 8);
    // Walks begin with a call rarely.
    const auto matcher = (*compiled)->NewMatcher();
    std::vector<uint32_t> mask(NumMaskWords(size_t(vocabulary.num_ids)));
    std::string begun;
    for (const char next : std::string_view("{\"a\":12}")) {
      int32_t id = 0;
      while (id < vocabulary.num_ids &&
             vocabulary.tokenizer->PieceBytes(id) != std::string_view(&next, 1)) {
        ++id;
      }
      if (id == vocabulary.num_ids) {  // the small vocabulary has no single "2"
        EXPECT_EQ(vocabulary.name, "odd");
        break;
      }
      ASSERT_TRUE(*matcher->Accept(id)) << begun << next;
      begun += next;
      ASSERT_EQ(matcher->FillMask(mask), absl::OkStatus());
      EXPECT_EQ(matcher->IsComplete(), oracle.Matches(begun)) << begun;
      for (int32_t other = 0; other < vocabulary.num_ids; ++other) {
        const std::string piece(vocabulary.tokenizer->PieceBytes(other));
        if (piece.empty() || std::ranges::count(vocabulary.ending_ids, other) > 0 ||
            vocabulary.tokenizer->FindSpecialToken(piece) == other) {
          continue;
        }
        ASSERT_EQ(MaskHas(mask, size_t(other)), oracle.Begins(begun + piece)) << begun << piece;
      }
    }
  }
  EXPECT_THAT(Refusal(Kind::kJsonSchemaOrText, R"({"not":{}})"), HasSubstr("is not enforced"));
  EXPECT_THAT(Refusal(Kind::kJsonSchemaOrText, std::string(kMaxGrammarBytes + 1, ' ')),
              HasSubstr("has 262145 bytes"));
}

TEST_F(GrammarTest, RollbackRestoresTheMask) {
  const Vocabulary& vocabulary = Vocabularies()[0];
  const auto grammar = CompilerOf(vocabulary).Compile(JsonObjectSource());
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto matcher = (*grammar)->NewMatcher();
  const size_t num_words = NumMaskWords(size_t(vocabulary.num_ids));
  std::vector<std::vector<uint32_t>> masks;
  uint64_t random = 3;
  for (int step = 0; step < 60; ++step) {
    masks.emplace_back(num_words);
    ASSERT_EQ(matcher->FillMask(masks.back()), absl::OkStatus());
    random = FakeHash(random, uint64_t(step));
    int32_t id = int32_t(random % uint64_t(vocabulary.num_ids));
    int tries = 0;
    while (!MaskHas(masks.back(), size_t(id)) && ++tries <= vocabulary.num_ids) {
      id = (id + 1) % vocabulary.num_ids;
    }
    if (tries > vocabulary.num_ids) {
      masks.pop_back();
      break;
    }
    ASSERT_TRUE(*matcher->Accept(id));
    EXPECT_FALSE(*matcher->Accept(1));  // EOS never fits, and nothing changes
  }
  ASSERT_GT(masks.size(), 5u);
  std::vector<uint32_t> mask(num_words);
  while (!masks.empty()) {
    const int num_back = masks.size() > 3 && masks.size() % 2 == 0 ? 2 : 1;
    for (int i = 0; i < num_back - 1; ++i) masks.pop_back();
    matcher->Rollback(num_back);
    ASSERT_EQ(matcher->FillMask(mask), absl::OkStatus());
    EXPECT_EQ(mask, masks.back());
    masks.pop_back();
  }
}

TEST_F(GrammarTest, BadSourcesAreRefused) {
  EXPECT_THAT(Refusal(Kind::kRegex, std::string(kMaxGrammarBytes + 1, 'a')),
              HasSubstr("has 262145 bytes; it must have at most 262144"));
  EXPECT_THAT(Refusal(Kind::kRegex, std::string(201, '(') + std::string(201, ')')),
              HasSubstr("201 deep"));
  EXPECT_THAT(Refusal(Kind::kRegex, "(a"), HasSubstr("is refused: "));
  EXPECT_THAT(Refusal(Kind::kRegex, "(?=a)b"), HasSubstr("Lookahead"));
  EXPECT_THAT(Refusal(Kind::kRegex, "a^b"), HasSubstr("is not enforced as a whole: "));
  EXPECT_THAT(Refusal(Kind::kEbnf, "start ::= \"a\""), HasSubstr("is refused: "));
  EXPECT_THAT(Refusal(Kind::kEbnf, "root ::= root \"a\""), HasSubstr("fitted by no text"));
  EXPECT_THAT(Refusal(Kind::kJsonSchema, R"({"type":"string","pattern":"a","minLength":2})"),
              HasSubstr("is not enforced as a whole: "));
  EXPECT_THAT(Refusal(Kind::kJsonSchema, R"({"type":"integer","minimum":3,"maximum":2})"),
              HasSubstr("is refused: "));
  for (const char* empty : {R"({"type":"number","minimum":1e-10,"maximum":2e-10})",
                            R"({"type":"number","exclusiveMinimum":1,"exclusiveMaximum":1})",
                            R"({"type":"number","exclusiveMinimum":0,"maximum":1e-7})"}) {
    EXPECT_THAT(Refusal(Kind::kJsonSchema, empty), HasSubstr("is refused: ")) << empty;
  }
  for (const char* range :
       {R"({"type":"integer","minimum":0,"maximum":120})", R"({"type":"integer","maximum":-3})",
        R"({"type":"integer","minimum":7})",
        R"({"type":"number","minimum":0,"exclusiveMaximum":1e-5})",
        R"({"type":"number","minimum":-1.5})"}) {
    EXPECT_TRUE(Compile(Kind::kJsonSchema, range).ok()) << range;
  }
  // Counts have 32 bits in xgrammar.
  EXPECT_THAT(Refusal(Kind::kRegex, "a{4294967298}"), HasSubstr("is refused: "));
  EXPECT_THAT(Refusal(Kind::kRegex, "a{2,4294967299}"), HasSubstr("is refused: "));
  EXPECT_THAT(Refusal(Kind::kRegex, "a{10001}"), HasSubstr("is refused: "));
  EXPECT_TRUE(Compile(Kind::kRegex, "a{10000}").ok());
  EXPECT_THAT(Refusal(Kind::kJsonSchema, R"({"type":"string","pattern":"a{10001}"})"),
              HasSubstr("is refused: "));
  EXPECT_THAT(Refusal(Kind::kEbnf, "root ::= \"a\"{4294967298}"), HasSubstr("is refused: "));
  // Escapes of what is no character: no text in UTF-8 fits.
  for (const char* escape :
       {R"(\ud83d\ude00)", R"([\ud800])", R"(\u{110000})", R"([a-\u{dfff}])"}) {
    EXPECT_THAT(Refusal(Kind::kRegex, escape), HasSubstr("is refused: ")) << escape;
  }
  EXPECT_THAT(Refusal(Kind::kEbnf, R"(root ::= "\ud83d")"), HasSubstr("is refused: "));
  EXPECT_THAT(Refusal(Kind::kEbnf, R"(root ::= [\ud83d])"), HasSubstr("is refused: "));
  EXPECT_THAT(Refusal(Kind::kJsonSchema, R"({"type":"string","pattern":"\\ud83d\\ude00"})"),
              HasSubstr("is refused: "));
  // A quote within JSON would have to be escaped.
  EXPECT_THAT(Refusal(Kind::kJsonSchema, R"({"type":"string","pattern":"a\"b"})"),
              HasSubstr("not supported within JSON"));
  EXPECT_THAT(Refusal(Kind::kRegex, "z+", 2), HasSubstr("fitted by no text"));
}

// Each ends, with a grammar or an error, and nothing else: in seconds, without a deep stack.
TEST_F(GrammarTest, CostlySourcesEnd) {
  std::vector<GrammarSource> sources = {
      {.kind = Kind::kRegex, .text = "(a|b)*a(a|b){24}"},
      {.kind = Kind::kRegex, .text = "((a{1,100}){1,100}){1,100}"},
      {.kind = Kind::kRegex, .text = "(a?){5000}a{5000}"},
      {.kind = Kind::kRegex, .text = "[a-z]{1,1000000}"},
      {.kind = Kind::kRegex, .text = std::string(200, '(') + "a" + std::string(200, ')')},
      {.kind = Kind::kEbnf, .text = "root ::= root root | \"a\""},
  };
  std::string rules, choices = "root ::= \"a\"", schema = R"({"properties":{)";
  for (int i = 0; i < 6000; ++i) rules += StrCat("r", i, " ::= r", i + 1, " | \"a\" r", i, "\n");
  sources.push_back({.kind = Kind::kEbnf, .text = "root ::= r0\n" + rules + "r6000 ::= \"b\"\n"});
  for (int i = 0; i < 20000; ++i) choices += StrCat(" | \"", i, "\"");
  sources.push_back({.kind = Kind::kEbnf, .text = choices});
  for (int i = 0; i < 2000; ++i) schema += StrCat(i == 0 ? "" : ",", "\"p", i, "\":{}");
  sources.push_back({.kind = Kind::kJsonSchema, .text = schema + "}}"});
  for (const GrammarSource& source : sources) {
    const auto grammar = CompilerOf(Vocabularies()[0]).Compile(source);
    if (grammar.ok()) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(grammar.status()) ||
                absl::IsDeadlineExceeded(grammar.status()))
        << source.text.substr(0, 40) << grammar.status();
  }
}

// Every split of a text into "a"s is a parse of its own.
TEST_F(GrammarTest, AnAmbiguousGrammarEndsWithAnError) {
  const auto grammar = Compile(Kind::kEbnf, "root ::= s\ns ::= s s s | s s | \"a\"\n", 2);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const bool asks_for_masks : {false, true}) {
    const auto matcher = (*grammar)->NewMatcher();
    std::vector<uint32_t> mask(NumMaskWords(33));
    absl::Status status;
    for (int step = 0; step < 100 && status.ok(); ++step) {
      if (asks_for_masks) {
        status = matcher->FillMask(mask);
        if (!status.ok()) break;
        ASSERT_EQ(mask[0] >> 4 & 1, 1u) << "step " << step;
      }
      const auto fits = matcher->Accept(4);
      status = fits.status();
      ASSERT_TRUE(!fits.ok() || *fits) << "step " << step;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
}

}  // namespace
}  // namespace lssar
