// The oracle of the tokenizer file targets.
#ifndef LSSAR_TESTS_FUZZ_TOKENIZER_FILES_H_
#define LSSAR_TESTS_FUZZ_TOKENIZER_FILES_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "models/text/tokenizer.h"

namespace lssar {

// The vocab_size that the files must fit.
inline constexpr int kFuzzVocabSize = 300;

// The 256 byte pieces in GPT-2's alphabet with the ids 0 to 255, as the inside of a JSON object.
const std::string& BytePieces();

struct TokenizerMerge {
  int32_t left, right, merged;
};
// The merges of TokenizerJson, by rank.
inline constexpr auto kTokenizerMerges = std::to_array<TokenizerMerge>({{'t', 'h', 256},
                                                                        {256, 'e', 257},
                                                                        {' ', 257, 258},
                                                                        {' ', 't', 259},
                                                                        {'a', 'a', 260},
                                                                        {260, 260, 261},
                                                                        {'a', 'b', 262}});

// A tokenizer.json with the byte pieces, these merges, `normalizer` and `pre_tokenizer` (JSON).
std::string TokenizerJson(std::string_view normalizer, std::string_view pre_tokenizer);

// The ids of `text` and `more` together are those of SplitStable's parts. The two are whole
// characters.
void CheckStableSplit(const Tokenizer& tokenizer, std::string_view text, std::string_view more);

// Loads the tokenizer in `folder`, if it is one, and checks it with a few texts: ids are in
// range, a stream of ids gives the same text as all of them at once, a second call gives the same
// ids, and so does one call for each part of SplitStable. The planted fault is an id of VocabSize()
// in a quarter of the files.
void CheckTokenizerFiles(const std::string& folder);

}  // namespace lssar

#endif  // LSSAR_TESTS_FUZZ_TOKENIZER_FILES_H_
