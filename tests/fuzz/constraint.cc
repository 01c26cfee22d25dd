// Masks of regular expressions, grammars and choices against PCRE2, on a walk through texts that
// fit, with steps back.
// Input   the kind (one byte), the expression, then how each step goes on
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "kernels/sampling.h"
#include "models/text/grammar.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/regex_oracle.h"

namespace lssar {
namespace {

constexpr int kMaxDepth = 3;
constexpr int kMaxSteps = 16;
constexpr int32_t kEndingId = 1;

// Characters whole and in parts, and pieces that end within a part of an expression. é is C3 A9.
const PieceTokenizer& Pieces() {
  static const auto* const pieces = new PieceTokenizer({"",
                                                        "</s>",
                                                        "a",
                                                        "b",
                                                        "c",
                                                        "0",
                                                        "1",
                                                        "\"",
                                                        "\xC3\xA9",
                                                        "\xC3",
                                                        "\xA9",
                                                        "ab",
                                                        "ba",
                                                        "aaa",
                                                        "a\"",
                                                        "01",
                                                        "bc0",
                                                        "\xA9\xC3",
                                                        "b\xC3\xA9"
                                                        "1",
                                                        "cccc"});
  return *pieces;
}

class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  // Below `limit`; 0 behind the end.
  size_t Below(size_t limit) {
    if (at_ == bytes_.size()) return 0;
    return bytes_[at_++] % limit;
  }

 private:
  const std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

// One language in both notations.
struct Expression {
  std::string regex;
  std::string ebnf;
};

Expression ReadAlternatives(Bytes* bytes, int depth);

Expression ReadAtom(Bytes* bytes, int depth) {
  constexpr std::array<const char*, 7> kCharacters = {"a", "b", "c", "0", "1", "\"", "\xC3\xA9"};
  constexpr std::array<const char*, 4> kClasses = {"[a-c]", "[01]", "[b0-1]", "[ac\"]"};
  const size_t kind = bytes->Below(10);
  if (kind < 6 || (kind >= 8 && depth == kMaxDepth)) {
    const std::string character = kCharacters[bytes->Below(kCharacters.size())];
    // A group: what repeats é repeats both of its bytes.
    return {StrCat("(", character, ")"),
            character == "\"" ? "\"\\\"\"" : StrCat("\"", character, "\"")};
  }
  if (kind < 8) {
    const std::string set = kClasses[bytes->Below(kClasses.size())];
    return {set, set};
  }
  const Expression inner = ReadAlternatives(bytes, depth + 1);
  return {StrCat("(", inner.regex, ")"), StrCat("(", inner.ebnf, ")")};
}

Expression ReadRepeated(Bytes* bytes, int depth) {
  const Expression atom = ReadAtom(bytes, depth);
  std::string repetition;
  switch (bytes->Below(8)) {
    case 0: repetition = "*"; break;
    case 1: repetition = "+"; break;
    case 2: repetition = "?"; break;
    case 3: {
      const size_t least = bytes->Below(3);
      repetition = StrCat("{", least, ",", least + 1 + bytes->Below(2), "}");
      break;
    }
    default: break;
  }
  return {atom.regex + repetition, atom.ebnf + repetition};
}

Expression ReadAlternatives(Bytes* bytes, int depth) {
  Expression all;
  const size_t num_alternatives = 1 + bytes->Below(3);
  for (size_t i = 0; i < num_alternatives; ++i) {
    if (i > 0) {
      all.regex += "|";
      all.ebnf += " | ";
    }
    const size_t num_parts = 1 + bytes->Below(4);
    for (size_t part = 0; part < num_parts; ++part) {
      const Expression next = ReadRepeated(bytes, depth);
      all.regex += next.regex;
      all.ebnf += (part > 0 ? " " : "") + next.ebnf;
    }
  }
  return all;
}

struct Case {
  GrammarSource source;
  std::string regex;
};

Case ReadCase(Bytes* bytes) {
  switch (bytes->Below(3)) {
    case 0: {
      const Expression read = ReadAlternatives(bytes, 0);
      return {{.kind = GrammarSource::Kind::kRegex, .text = read.regex}, read.regex};
    }
    case 1: {
      const Expression read = ReadAlternatives(bytes, 0);
      return {{.kind = GrammarSource::Kind::kEbnf, .text = StrCat("root ::= ", read.ebnf, "\n")},
              read.regex};
    }
    default: {
      std::vector<std::string> choices;
      std::string regex;
      const size_t num_choices = 1 + bytes->Below(5);
      for (size_t i = 0; i < num_choices; ++i) {
        std::string choice;
        const size_t num_characters = 1 + bytes->Below(5);
        for (size_t character = 0; character < num_characters; ++character) {
          choice += Pieces().PieceBytes(int32_t(2 + bytes->Below(7)));
        }
        regex += (i > 0 ? "|" : "") + choice;
        choices.push_back(choice);
      }
      return {ChoiceSource(choices), regex};
    }
  }
}

// The ids that may come behind `text`, by both. nullopt: PCRE2 has given up.
std::optional<std::vector<int32_t>> CheckedIds(GrammarMatcher* matcher, const RegexOracle& oracle,
                                               const std::string& text) {
  const bool matches = oracle.Matches(text);
  const int num_ids = Pieces().VocabSize();
  std::vector<int32_t> allowed;
  for (int32_t id = 0; id < num_ids; ++id) {
    const std::string piece(Pieces().PieceBytes(id));
    if (!piece.empty() && id != kEndingId && oracle.Begins(text + piece)) allowed.push_back(id);
  }
  if (oracle.HasGivenUp()) return std::nullopt;
  std::vector<uint32_t> mask(NumMaskWords(size_t(num_ids)));
  LSSAR_CHECK(matcher->FillMask(mask).ok());
  if (FaultIsPlanted() && text.size() == 7 && text.back() == '1') mask[0] ^= 1u << 5;
  LSSAR_CHECK(matcher->IsComplete() == matches);
  for (int32_t id = 0; id < num_ids; ++id) {
    LSSAR_CHECK(MaskHas(mask, size_t(id)) == std::ranges::binary_search(allowed, id));
  }
  return allowed;
}

}  // namespace

LSSAR_FUZZ_TARGET(constraint) {
  if (!GrammarCompiler::IsAvailable() || bytes.size() > 200) return;
  static const auto* const compiler =
      new GrammarCompiler(Pieces(), Pieces().VocabSize(), std::array{kEndingId});
  Bytes reader(bytes);
  const Case test = ReadCase(&reader);
  const auto grammar = compiler->Compile(test.source);
  LSSAR_CHECK(grammar.ok());  // the vocabulary has every character
  const RegexOracle oracle(test.regex);
  const auto matcher = (*grammar)->NewMatcher();
  std::vector<std::string> texts = {""};  // after each accepted token
  for (int step = 0; step < kMaxSteps; ++step) {
    const auto allowed = CheckedIds(matcher.get(), oracle, texts.back());
    if (!allowed.has_value()) return;
    const size_t choice = reader.Below(256);
    if (choice >= 224 || allowed->empty()) {
      const size_t back = std::min<size_t>(texts.size() - 1, 1 + choice % 4);
      if (back == 0) return;
      matcher->Rollback(int(back));
      texts.resize(texts.size() - back);
      continue;
    }
    const int32_t id = (*allowed)[choice % allowed->size()];
    const auto fits = matcher->Accept(id);
    LSSAR_CHECK(fits.ok() && *fits);
    texts.push_back(texts.back() + std::string(Pieces().PieceBytes(id)));
  }
}

}  // namespace lssar
