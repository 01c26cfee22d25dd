// What a build without xgrammar has in place of grammar_xgrammar.cc.
#include "models/text/grammar.h"

namespace lssar {

struct GrammarCompiler::State {};

bool GrammarCompiler::IsAvailable() { return false; }

GrammarCompiler::GrammarCompiler(const Tokenizer&, int, std::span<const int32_t>) {}
GrammarCompiler::~GrammarCompiler() = default;

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::Compile(
    const GrammarSource&, const std::function<bool()>&) const {
  return absl::UnimplementedError(
      "this build has no xgrammar, so it cannot constrain the output (sh deploy/xgrammar.sh)");
}

}  // namespace lssar
