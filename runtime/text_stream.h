// Tokens in, the text to send out: whole UTF-8 characters, nothing of a stop string.
#ifndef LSSAR_RUNTIME_TEXT_STREAM_H_
#define LSSAR_RUNTIME_TEXT_STREAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/tokenizer.h"
#include "runtime/stop_matcher.h"

namespace lssar {

class TextStream {
 public:
  // `tokenizer` null: every text is empty. `stop_strings` null: nothing is matched.
  TextStream(const Tokenizer* tokenizer, std::shared_ptr<const StopStrings> stop_strings);

  // Adds a token of the text; appends to `out` what may be sent. `match` false: characters that
  // this token completes take no part in a stop string.
  void Push(int32_t id, bool match, std::string* out);

  // The text ended here: an unfinished character becomes U+FFFD, what was held back comes out.
  void Finish(std::string* out);

  // The stop string that ended the text; null: none did.
  const std::string* StopString() const;

 private:
  void Match(std::string_view text, bool match, std::string* out);

  std::optional<StreamDecoder> decoder_;
  std::shared_ptr<const StopStrings> stop_strings_;
  std::optional<StopMatcher> matcher_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_TEXT_STREAM_H_
