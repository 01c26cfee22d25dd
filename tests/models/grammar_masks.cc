// Masks of grammars for grammar_masks_test.py: JSON lines on stdin, each {"kind", "text"}, and JSON
// lines on stdout.
//
//   grammar_masks DIRECTORY VOCAB_SIZE NUM_STEPS
//
// The first line has the vocabulary: the bytes of each id, hexadecimal, "" where it has no text.
// Then for each source: what the compiler reads, and steps at random, each with the mask before it,
// hexadecimal words, whether the text is complete, and the id that comes; or an error.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "kernels/sampling.h"
#include "models/text/grammar.h"
#include "models/text/json_schema.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

std::string Hex(std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) text += {kHex[uint8_t(c) >> 4], kHex[uint8_t(c) & 15]};
  return text;
}

GrammarSource SourceOf(const Json& line) {
  const std::string kind = line["kind"];
  return {.kind = kind == "regex"  ? GrammarSource::Kind::kRegex
                  : kind == "ebnf" ? GrammarSource::Kind::kEbnf
                                   : GrammarSource::Kind::kJsonSchema,
          .text = line["text"]};
}

Json Walk(const Grammar& grammar, int num_ids, int num_steps, uint64_t* random) {
  Json steps = Json::array();
  auto matcher = grammar.NewMatcher();
  std::vector<uint32_t> mask(NumMaskWords(size_t(num_ids)));
  for (int step = 0; step < num_steps; ++step) {
    LSSAR_CHECK(matcher->FillMask(mask).ok());
    const std::string_view bytes(reinterpret_cast<const char*>(mask.data()), 4 * mask.size());
    steps.push_back({{"mask", Hex(bytes)}, {"complete", matcher->IsComplete()}});
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < num_ids; ++id) {
      if (MaskHas(mask, size_t(id))) allowed.push_back(id);
    }
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    if (allowed.empty()) {
      matcher = grammar.NewMatcher();
      steps.back()["id"] = -1;
      continue;
    }
    const int32_t id = allowed[(*random >> 33) % allowed.size()];
    LSSAR_CHECK(*matcher->Accept(id));
    steps.back()["id"] = id;
  }
  return steps;
}

int Run(const std::string& directory, int vocab_size, int num_steps) {
  const auto tokenizer = LoadTokenizer(directory, vocab_size).value();
  Json vocabulary = Json::array();
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string_view bytes = tokenizer->PieceBytes(id);
    const bool is_special = !bytes.empty() && tokenizer->FindSpecialToken(bytes) == id;
    vocabulary.push_back(is_special ? "" : Hex(bytes));
  }
  std::cout << Json{{"vocabulary", vocabulary}} << "\n";
  const GrammarCompiler compiler(*tokenizer, vocab_size, {});
  uint64_t random = 1;
  for (std::string line; std::getline(std::cin, line);) {
    const GrammarSource source = SourceOf(Json::parse(line));
    const auto grammar = compiler.Compile(source);
    if (!grammar.ok()) {
      std::cout << Json{{"error", grammar.status().message()}} << "\n";
      continue;
    }
    const std::string prepared = source.kind == GrammarSource::Kind::kJsonSchema
                                     ? PrepareJsonSchema(source.text).value()
                                     : source.text;
    std::cout << Json{{"text", prepared},
                      {"steps", Walk(**grammar, vocab_size, num_steps, &random)}}
              << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  LSSAR_CHECK(argc == 4);
  return lssar::Run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
}
