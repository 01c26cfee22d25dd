// Text <-> token ids.
#ifndef LSSAR_MODELS_TEXT_TOKENIZER_H_
#define LSSAR_MODELS_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/utf8.h"

namespace lssar {

// Const after load and safe from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int VocabSize() const = 0;

  // Ids of `text`, without BOS. Role tokens in the text ("<|user|>") become their ids.
  // `should_stop` is polled about every kEncodePollBytes of the text; true ends the work.
  // Errors  INVALID_ARGUMENT: not UTF-8 (names the byte offset)
  //         CANCELLED: should_stop returned true
  virtual absl::StatusOr<std::vector<int32_t>> Encode(
      std::string_view text, absl::FunctionRef<bool()> should_stop) const = 0;
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const {
    return Encode(text, [] { return false; });
  }
  static constexpr size_t kEncodePollBytes = 4096;

  // Splits `text` at its last place, at or after byte `from`, that is safe whatever follows the
  // text. For every `more`
  //   Encode(text + more) == Encode(front) followed by Encode(rest + more).
  // The space between the two is in neither if the tokenizer adds it to `rest` (AddsDummyPrefix).
  // No such place is known: `front` is empty and `rest` is the text.
  struct StableSplit {
    std::string_view front, rest;
  };
  virtual StableSplit SplitStable(std::string_view text, size_t /*from*/ = 0) const {
    return {.front = {}, .rest = text};
  }

  // The most bytes of text that become one id: of the longest piece, special tokens included.
  // Texts that the normalizer shortens, and runs of unknown characters, may exceed it.
  virtual int MaxPieceBytes() const = 0;

  // The bytes of an id within a text: one byte for a byte-fallback piece, none for a control token
  // such as EOS.
  // Requires  0 <= id < VocabSize()
  virtual std::string_view PieceBytes(int32_t id) const = 0;

  // The name of a special token ("</s>"), which PieceBytes has no bytes for; empty for other ids.
  // Requires  0 <= id < VocabSize()
  virtual std::string_view SpecialTokenName(int32_t /*id*/) const { return {}; }

  // The id of the special token whose text this is, all of it; nullopt: there is none.
  virtual std::optional<int32_t> FindSpecialToken(std::string_view /*text*/) const {
    return std::nullopt;
  }

  // The special token that the file puts before each text; nullopt: none. Encode does not.
  virtual std::optional<int32_t> TokenBeforeText() const { return std::nullopt; }

  // True if the tokenizer adds a space before the text, which Decode removes from the first piece
  // (SentencePiece's dummy prefix).
  virtual bool AddsDummyPrefix() const = 0;

  // First 16 hex digits of the SHA-256 of the tokenizer's file.
  virtual std::string_view Hash() const = 0;
};

// For implementations of Encode.
// Errors  INVALID_ARGUMENT: `text` is not UTF-8 (names the byte offset); CANCELLED: should_stop
//         returned true, which is asked every 64 KiB
absl::Status CheckTokenizerText(std::string_view text, absl::FunctionRef<bool()> should_stop);
// CANCELLED: what Encode returns where should_stop returned true.
absl::Status EncodingStopped();

// The whole text of `ids`; bytes that are not UTF-8 become U+FFFD, and special tokens have no text
// or their names, as StreamDecoder does.
std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   bool skips_special_tokens = true);

// Detokenizes a stream of ids, whole UTF-8 characters at a time. The results of Push and Finish,
// concatenated, equal Decode of all the ids.
class StreamDecoder {
 public:
  // `continues_text`: the ids follow a prompt, so the first piece keeps its leading space.
  // `skips_special_tokens` false: special tokens give their names.
  StreamDecoder(const Tokenizer* tokenizer, bool continues_text, bool skips_special_tokens = true);

  // Adds an id and returns the characters that it completes, possibly none. An ill-formed byte
  // becomes U+FFFD as soon as no further byte can complete it (Unicode 3.9, maximal subpart).
  std::string Push(int32_t id);
  // Returns one U+FFFD for an unfinished character, else nothing.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool at_start_;
  bool skips_special_tokens_;
  std::string pending_;  // at most 3 bytes of an unfinished character
};

// Loads the first of these in `directory`: tokenizer.json (Hugging Face's BPE), tokenizer.model
// (SentencePiece), vocab.json with merges.txt, encoder.json with vocab.bpe (GPT-2), NAME.tiktoken
// (bpe_files.h). `vocab_size`, the model's, may exceed the number of pieces: the ids beyond have no
// bytes.
// Errors  NOT_FOUND: none of these files; INVALID_ARGUMENT: the first one found is damaged, has
//         pieces beyond vocab_size, or needs a step that is not supported; tokenizer.model and
//         tokenizer.json are there, and one id is another token in each, or tokenizer.json is no
//         BPE and has other rules
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory,
                                                         int vocab_size);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_TOKENIZER_H_
