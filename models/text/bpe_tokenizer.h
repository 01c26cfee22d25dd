// The BPE tokenizer: GPT-2's byte-level kind, and SentencePiece's kind as tokenizer.json writes it.
#ifndef LSSAR_MODELS_TEXT_BPE_TOKENIZER_H_
#define LSSAR_MODELS_TEXT_BPE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/added_tokens.h"
#include "models/text/bpe.h"
#include "models/text/pre_tokenizer.h"
#include "models/text/text_normalizer.h"
#include "models/text/tokenizer.h"

namespace lssar {

// The steps of a BPE tokenizer, in order: added tokens, normalizer, added tokens behind it,
// pre-tokenizer, merges.
struct BpeVocabulary {
  // The bytes of each id (" the"), vocab_size of them; empty for special tokens and unused ids.
  std::vector<std::string> pieces;
  BpeModel model;
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  bool adds_dummy_prefix = false;            // as Tokenizer::AddsDummyPrefix
  std::optional<int32_t> token_before_text;  // as Tokenizer::TokenBeforeText
  std::string hash;                          // first 16 hex digits of the SHA-256 of the files
};

// Errors  INVALID_ARGUMENT: a pattern of the pre-tokenizer is not supported, or the normalizer
//         makes too much of an added token (MaxNormalizedBytes)
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(BpeVocabulary vocabulary);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_BPE_TOKENIZER_H_
