// Pieces of OpenAI's replies as JSON text. Written by hand: a stream writes one for every token.
#ifndef LSSAR_SERVER_HTTP_OPENAI_REPLY_H_
#define LSSAR_SERVER_HTTP_OPENAI_REPLY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "lssar/v1/inference.pb.h"
#include "models/checkpoint.h"
#include "runtime/request.h"

namespace lssar {

// A reply is built in memory: its log-probabilities are bounded, to some 320 MiB of JSON.
// `field`: what asks for them. `advice`: how to ask for fewer.
// Errors  INVALID_ARGUMENT: names the field, the value and the limit
absl::Status CheckReplyLogprobs(std::string_view field, int64_t num_logprobs,
                                std::string_view advice);

// How tokens become text in replies.
struct TokenFormat {
  const Checkpoint* checkpoint = nullptr;
  bool as_ids = false;

  // Null: the checkpoint has none.
  const Tokenizer* GetTokenizer() const { return checkpoint->tokenizer.get(); }
  // The token's bytes; the name of a special token, which has none ("</s>"); "bytes:\xe2\x80" if
  // the bytes are not UTF-8; "token_id:17" without a tokenizer, with as_ids, and for an id that is
  // no token.
  std::string Label(int32_t id) const;
};

// The legacy shape of completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}.
class LegacyLogprobs {
 public:
  static constexpr int64_t kBytesPerLogprob = 32;  // of JSON, in round figures; also below
  // `continues_text`: the tokens follow a prompt that the text does not hold. Else the tokenizer's
  // own leading space is no part of the text.
  LegacyLogprobs(const TokenFormat& format, bool continues_text)
      : format_(format), at_start_(!continues_text) {}

  // `num_top`: how many of the best are shown beside the token itself.
  void Add(const v1::Token& token, int num_top);
  // A token without a log-probability: the first of a text.
  void AddFirst(int32_t id);
  // An entry without a token.
  void AddNone();

  // Appends the object of the tokens added since the last Take, and forgets them.
  void Take(std::string* out);

 private:
  void AddToken(int32_t id);

  TokenFormat format_;
  bool at_start_;
  int64_t offset_ = 0;  // characters
  std::string tokens_, logprobs_, tops_, offsets_;
};

// The chat shape: {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}.
class ChatLogprobs {
 public:
  static constexpr int64_t kBytesPerLogprob = 80;
  explicit ChatLogprobs(const TokenFormat& format) : format_(format) {}
  void Add(const v1::Token& token, int num_top);
  void Take(std::string* out);
  // The list alone: [{"token", "logprob", "bytes", "top_logprobs"}].
  void TakeList(std::string* out);

 private:
  void AppendEntry(int32_t id, float logprob);

  TokenFormat format_;
  std::string content_;
};

// vLLM's prompt_logprobs: [null, {"17": {"logprob", "rank", "decoded_token"}}].
class PromptLogprobList {
 public:
  static constexpr int64_t kBytesPerLogprob = 80;
  explicit PromptLogprobList(const TokenFormat& format) : format_(format) {}
  void Add(const v1::Token& token, int num_top);
  std::string Json() const { return "[null" + entries_ + "]"; }

 private:
  TokenFormat format_;
  std::string entries_;
};

// "stop" or "length" as a JSON string; null: not finished.
std::string_view FinishReasonJson(v1::FinishReason finish);

// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
std::string UsageJson(const v1::Usage& usage);

// Counts and times in llama.cpp's names, and the time in the queue: {"queue_ms", "cache_n",
// "prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms",
// "predicted_per_second"}. prompt_n are the prompt's tokens that were computed.
std::string TimingsJson(const v1::Finished& finished);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_OPENAI_REPLY_H_
