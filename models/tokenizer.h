// Text <-> token ids.
#ifndef LSSAR_MODELS_TOKENIZER_H_
#define LSSAR_MODELS_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar {

// Const after load and safe from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int VocabSize() const = 0;

  // Ids of `text`, without BOS. Role tokens written out in the text ("<|user|>") become their ids.
  // Errors  INVALID_ARGUMENT: not UTF-8 (names the byte offset).
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const = 0;

  // The bytes that an id stands for inside running text (a byte-fallback piece is its one byte; a
  // control token such as EOS is empty). Requires 0 <= id < VocabSize().
  virtual std::string_view PieceBytes(int32_t id) const = 0;

  // The id's name in the vocabulary ("<0x0A>", "\u2581the", "</s>"), for people.
  virtual std::string_view PieceName(int32_t id) const = 0;

  // Whether a leading space of the first piece of a text is the tokenizer's own and is dropped by
  // Decode (SentencePiece's dummy prefix).
  virtual bool AddsDummyPrefix() const = 0;

  // First 16 hex digits of the SHA-256 of the tokenizer's file.
  virtual std::string_view Hash() const = 0;
};

// The whole text of `ids`; bytes that are not UTF-8 become U+FFFD, as StreamDecoder does.
std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids);

// Turns a growing list of ids into text, whole UTF-8 characters at a time: Push's results followed
// by Finish's are exactly Decode of all the ids, however they were cut.
class StreamDecoder {
 public:
  // `continues_text`: the ids follow a prompt, so a leading space of the first piece is kept.
  StreamDecoder(const Tokenizer* tokenizer, bool continues_text);

  // Adds an id; returns the characters that became whole, perhaps none. An ill-formed byte becomes
  // U+FFFD as soon as it cannot become part of a character any more (Unicode 3.9, maximal subpart).
  std::string Push(int32_t id);
  // What is still held back: an unfinished character becomes one U+FFFD.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool at_start_;
  std::string held_;  // at most 3 bytes of an unfinished character
};

// Checks `text`; nullopt when it is UTF-8, else the offset of the first byte that is not.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// INVALID_ARGUMENT with the place and the value of the first byte that is not UTF-8.
absl::Status CheckUtf8(std::string_view text);

// Loads `directory`/tokenizer.model (SentencePiece), or else tokenizer.json, or else vocab.json and
// merges.txt (GPT-2's byte-level BPE).
// Errors  NOT_FOUND: none of these files; INVALID_ARGUMENT: the first of them that is there is no
//         tokenizer, or does not fit vocab_size (names both).
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory,
                                                         int vocab_size);

}  // namespace lssar

#endif  // LSSAR_MODELS_TOKENIZER_H_
