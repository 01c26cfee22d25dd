// libsentencepiece in std types. Its header declares an absl::string_view of its own, so no file
// may include both it and Abseil.
#ifndef LSSAR_MODELS_TEXT_SENTENCE_PIECE_LIBRARY_H_
#define LSSAR_MODELS_TEXT_SENTENCE_PIECE_LIBRARY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lssar {

// Const after Load and safe from any thread.
class SentencePieceLibrary {
 public:
  // Texts that hold this cannot be encoded: four noncharacters, which stand before a text that
  // continues another.
  static constexpr std::string_view kContinuation =
      "\xEF\xB7\x90\xEF\xB7\xAF\xEF\xB7\x91\xEF\xB7\xAE";

  // `file`: a tokenizer.model of `num_pieces` pieces that ParseSentencePieceFile has accepted,
  // WithoutSelfTest: the library does not check offsets. nullptr: it refuses the file; `error` says
  // why.
  static std::unique_ptr<SentencePieceLibrary> Load(std::string_view file, int num_pieces,
                                                    std::string* error);
  ~SentencePieceLibrary();

  // Appends the ids of `text`. continues: the text does not begin a text; it gets no dummy prefix
  // and keeps its first space. Returns false after an error; `error` says which.
  // Cost  O(n log n) for n bytes, but quadratic in a run of unknown characters
  bool Encode(std::string_view text, bool continues, std::vector<int32_t>* ids,
              std::string* error) const;

 private:
  struct Processor;
  SentencePieceLibrary(std::unique_ptr<Processor> processor, int num_pieces);

  std::unique_ptr<Processor> processor_;
  int num_pieces_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_SENTENCE_PIECE_LIBRARY_H_
