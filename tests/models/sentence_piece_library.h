// The SentencePiece library in std types: trains small models and is the oracle of ours. Its header
// declares an absl::string_view of its own, so no file may include both it and Abseil.
#ifndef LSSAR_TESTS_MODELS_SENTENCE_PIECE_LIBRARY_H_
#define LSSAR_TESTS_MODELS_SENTENCE_PIECE_LIBRARY_H_

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lssar::testing {

class SentencePieceLibrary {
 public:
  // `file`: the bytes of a tokenizer.model. Ends the test program if the library refuses them.
  explicit SentencePieceLibrary(std::string_view file);
  ~SentencePieceLibrary();

  int NumPieces() const;
  std::vector<int> Encode(std::string_view text) const;
  std::string Decode(const std::vector<int>& ids) const;

 private:
  struct Processor;
  std::unique_ptr<Processor> processor_;
};

// The file of a model trained on the lines; `options` are those of spm_train.
std::string TrainSentencePiece(const std::vector<std::string>& lines,
                               std::unordered_map<std::string, std::string> options);

}  // namespace lssar::testing

#endif  // LSSAR_TESTS_MODELS_SENTENCE_PIECE_LIBRARY_H_
