// The files of a BPE tokenizer.
#ifndef LSSAR_MODELS_TEXT_BPE_FILES_H_
#define LSSAR_MODELS_TEXT_BPE_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "models/text/bpe_tokenizer.h"

namespace lssar {

// All three: `vocab_size` may be larger than the number of pieces.
// Errors  NOT_FOUND: no such file; INVALID_ARGUMENT: a file is damaged, has ids beyond vocab_size,
//         or needs a step that this build lacks (the message names the field and the value that it
//         must have)

// `directory`/tokenizer.json, Hugging Face's format: BPE over bytes (GPT-2, GPT-NeoX, Llama 3) or
// over characters with U+2581 for spaces (Llama 2). If it puts a token before each text,
// tokenizer_config.json must say add_bos_token.
absl::StatusOr<BpeVocabulary> ReadTokenizerJson(const std::string& directory, int vocab_size);

// vocab.json and merges.txt, or encoder.json and vocab.bpe: GPT-2's. Pieces that no merge makes are
// special tokens, as are those beside the files (tokens_beside.h).
absl::StatusOr<BpeVocabulary> ReadVocabularyAndMerges(const std::string& directory, int vocab_size);

// NAME.tiktoken, where NAME is gpt2, r50k_base, p50k_base, cl100k_base or o200k_base, with that
// encoding's pattern and special tokens; or tokenizer.tiktoken, whose pattern and special tokens
// are tokenizer_config.json's tiktoken_pattern and added_tokens_decoder.
absl::StatusOr<BpeVocabulary> ReadTiktokenFile(const std::string& directory, int vocab_size);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_BPE_FILES_H_
