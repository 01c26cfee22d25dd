// Tokenizers, and texts for them: many scripts, emoji, control characters, odd spaces.
#ifndef LSSAR_TESTS_MODELS_TOKENIZER_TEXTS_H_
#define LSSAR_TESTS_MODELS_TOKENIZER_TEXTS_H_

#include <random>
#include <string>
#include <vector>

#include "models/text/tokenizer.h"

namespace lssar::testing {

// Loaded once: of kShippedModel, and GPT-2's.
const Tokenizer& Shipped();
const Tokenizer& Gpt2();

// `num_parts` words, spaces, characters and symbols of many kinds, one after the other.
std::string RandomText(std::mt19937* rng, int num_parts);

// The lines of this project's documents.
std::vector<std::string> DocumentLines();

}  // namespace lssar::testing

#endif  // LSSAR_TESTS_MODELS_TOKENIZER_TEXTS_H_
