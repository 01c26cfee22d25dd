// GPT-2's byte-level BPE: the vocabulary and the tokenizer over it.
#ifndef LSSAR_MODELS_BYTE_LEVEL_TOKENIZER_H_
#define LSSAR_MODELS_BYTE_LEVEL_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizer.h"

namespace lssar {

// `left` followed by `right` becomes `merged`; all are ids.
struct BpeMerge {
  int32_t left, right;
  int32_t merged;
};

struct ByteLevelVocabulary {
  // The bytes of each id (" the"), vocab_size of them; empty for special tokens and unused ids.
  std::vector<std::string> pieces;
  std::array<int32_t, 256> byte_ids{};  // of the single bytes
  std::vector<BpeMerge> merges;         // by rank, the first learnt first
  // Texts that are one token wherever they occur ("<|endoftext|>"), and their ids.
  std::vector<std::pair<std::string, int32_t>> added_tokens;
  std::string hash;  // first 16 hex digits of the SHA-256 of the files
};

// Reads `directory`/tokenizer.json (Hugging Face's format, byte-level BPE only), or else vocab.json
// and merges.txt, where pieces that no merge makes are the special tokens. `vocab_size` may be
// larger than the number of pieces.
// Errors  NOT_FOUND: none of these files; INVALID_ARGUMENT: a file is damaged, has ids beyond
//         vocab_size, or needs a step that this build lacks (the message names the field and the
//         value that it must have)
absl::StatusOr<ByteLevelVocabulary> ReadByteLevelVocabulary(const std::string& directory,
                                                            int vocab_size);

std::unique_ptr<Tokenizer> MakeByteLevelTokenizer(ByteLevelVocabulary vocabulary);

}  // namespace lssar

#endif  // LSSAR_MODELS_BYTE_LEVEL_TOKENIZER_H_
