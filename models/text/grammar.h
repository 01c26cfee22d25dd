// Constrained decoding: the tokens that may come next, so that a text fits a JSON Schema, a regular
// expression or a grammar. xgrammar does the work; a build without it refuses every source.
#ifndef LSSAR_MODELS_TEXT_GRAMMAR_H_
#define LSSAR_MODELS_TEXT_GRAMMAR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/text/tokenizer.h"

namespace lssar {

inline constexpr size_t kMaxGrammarBytes = size_t{256} << 10;
// Brackets of a regular expression or a grammar within each other, escaped ones included.
inline constexpr int kMaxGrammarDepth = 200;
inline constexpr std::chrono::seconds kMaxGrammarCompileTime{10};
// The work of one call of a GrammarMatcher: states of the parser that it steps through. A mask may
// take some for each id: within a bounded string every piece of the vocabulary is tried.
constexpr int64_t MaxMatcherSteps(int num_ids) { return 100'000 + int64_t{32} * num_ids; }

struct GrammarSource {
  enum class Kind : uint8_t {
    kJsonSchema,
    // JSON of the schema, or a text whose first character is not "{", each behind any white space.
    kJsonSchemaOrText,
    kRegex,  // the whole text matches it
    kEbnf,   // GBNF's notation: rules NAME ::= ..., of which `root` is the text
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;  // UTF-8

  bool IsJsonSchema() const { return kind == Kind::kJsonSchema || kind == Kind::kJsonSchemaOrText; }
};

// Any JSON object.
GrammarSource JsonObjectSource();
// One of these texts. Requires  >= 1 of them, UTF-8
GrammarSource ChoiceSource(std::span<const std::string> choices);

// What can be checked of a source without its compilation.
// Errors  INVALID_ARGUMENT: too many bytes, or brackets too deep
absl::Status CheckGrammarSource(const GrammarSource& source);

// The same regex or grammar with each \xHH as \u00HH: xgrammar takes all hexadecimal digits behind
// \x for one number.
std::string WithoutHexEscapes(std::string_view text);
// The same regex, as xgrammar reads it: without \xHH, and without an escaped ^ at the beginning of
// a class ([\^a]), which it takes for the class's negation.
std::string PrepareRegex(std::string_view regex);

// How one text fits a grammar, token by token.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Sets the bits (kernels/sampling.h) of the ids that may come next, and clears the others. The
  // ids of special tokens and those without bytes never may.
  // Shapes  mask [NumMaskWords(num_ids)], of the compiler's num_ids
  // Errors  RESOURCE_EXHAUSTED: it would take more than MaxMatcherSteps; the matcher must not be
  //         used any more
  virtual absl::Status FillMask(std::span<uint32_t> mask) = 0;
  // False: the text with this id behind it does not begin any that fits; nothing has changed.
  // Errors  RESOURCE_EXHAUSTED, as above
  virtual absl::StatusOr<bool> Accept(int32_t id) = 0;
  // Takes back the last accepted tokens.
  virtual void Rollback(int num_tokens) = 0;
  // The text so far fits.
  virtual bool IsComplete() const = 0;
};

// A compiled grammar. Immutable; threads may share it.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // A matcher of the empty text.
  virtual std::unique_ptr<GrammarMatcher> NewMatcher() const = 0;
  virtual int64_t NumBytes() const = 0;  // of memory, about
};

// Threads  any
class GrammarCompiler {
 public:
  // The build has xgrammar.
  static bool IsAvailable();

  // Grammars of texts in ids [0, num_ids), with the bytes that `tokenizer` gives them. `ending_ids`
  // end a text, whatever their bytes.
  // Requires  num_ids <= tokenizer.VocabSize()
  // Cost      a sort of the vocabulary
  GrammarCompiler(const Tokenizer& tokenizer, int num_ids, std::span<const int32_t> ending_ids);
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Errors  INVALID_ARGUMENT: too long, too deep, not in the notation, not all of it is enforced
  //         (models/text/json_schema.h), or no text of the vocabulary fits. The message is about
  //         the source: "has 300000 bytes; ..."
  //         DEADLINE_EXCEEDED: it takes longer than kMaxGrammarCompileTime; the same
  //         CANCELLED: should_stop, which is polled on another thread, returned true
  //         UNIMPLEMENTED: the build has no xgrammar
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(
      const GrammarSource& source,
      const std::function<bool()>& should_stop = [] { return false; }) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_GRAMMAR_H_
