// GPT-2's byte-level BPE behind Tokenizer (tokenizer.h).
#ifndef LSSAR_MODELS_BYTE_LEVEL_TOKENIZER_H_
#define LSSAR_MODELS_BYTE_LEVEL_TOKENIZER_H_

#include <memory>

#include "models/byte_level_vocabulary.h"
#include "models/tokenizer.h"

namespace lssar {

std::unique_ptr<Tokenizer> MakeByteLevelTokenizer(ByteLevelVocabulary vocabulary);

}  // namespace lssar

#endif  // LSSAR_MODELS_BYTE_LEVEL_TOKENIZER_H_
