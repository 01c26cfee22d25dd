// The oracle of the tokenizer file targets.
#ifndef LSSAR_TESTS_FUZZ_TOKENIZER_FILES_H_
#define LSSAR_TESTS_FUZZ_TOKENIZER_FILES_H_

#include <string>

namespace lssar {

// The vocab_size that the files must fit.
inline constexpr int kFuzzVocabSize = 300;

// The 256 byte pieces in GPT-2's alphabet with the ids 0 to 255, as the inside of a JSON object.
const std::string& BytePieces();

// Loads the tokenizer in FuzzFolder(), if it is one, and checks it with a few texts: ids are in
// range, a stream of ids gives the same text as all of them at once, and a second call the same
// ids. The planted fault is an id of VocabSize() in a quarter of the files.
void CheckTokenizerFiles();

}  // namespace lssar

#endif  // LSSAR_TESTS_FUZZ_TOKENIZER_FILES_H_
