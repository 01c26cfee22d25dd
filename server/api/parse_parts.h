// What the parsers of parse_request.h have in common.
#ifndef LSSAR_SERVER_API_PARSE_PARTS_H_
#define LSSAR_SERVER_API_PARSE_PARTS_H_

#include <google/protobuf/repeated_field.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/parse_request.h"

namespace lssar {

// White space that chat templates trim.
inline constexpr std::string_view kSpace = " \t\n\v\f\r";

// Without a tokenizer any text is refused later.
absl::Status CheckTextBytes(const std::string& field, size_t num_bytes,
                            const ParseContext& context);

// FieldError of what is longer than the context, with that reason, and with the words by which
// clients of other servers (LiteLLM) know this error.
absl::Status ContextLengthError(std::string_view path, std::string_view problem, int max_model_len,
                                std::string_view subject = {});

// The ids that precede a text: BOS or nothing.
std::vector<int32_t> BosOf(const Checkpoint& checkpoint);

struct Prompt {
  std::vector<int32_t> ids;               // >= 1
  std::string text;                       // empty if the prompt came as ids
  std::vector<std::string> stop_strings;  // those of the chat template
};

// From text, token ids or a chat.
// `Message`: v1::GenerateRequest or v1::CaptureAttentionRequest.
template <typename Message>
absl::StatusOr<Prompt> ReadPrompt(const Message& message, const ParseContext& context);

// The fields that all requests to the engine have: attention_override, steering, checkpoint_hash,
// priority, use_prefix_cache, cache_salt.
// `Message`: v1::GenerateRequest, v1::ScoreRequest, v1::EmbedRequest or
// v1::CaptureAttentionRequest.
template <typename Message>
absl::Status ReadScheduling(const Message& message, const ParseContext& context, Request* request);

// A client that pinned a checkpoint must not get the results of another one.
// Errors  FAILED_PRECONDITION: `hash` is another one's
absl::Status CheckCheckpoint(std::string_view hash, const Checkpoint& checkpoint);

// Ascending, without repeats.
std::vector<int32_t> SortedUnique(std::vector<int32_t> entries);

// Reads positions in `text` ("the prompt") of n tokens: [-n, n), negative ones from the end.
absl::StatusOr<std::vector<int32_t>> ReadPositions(
    const std::string& field, const google::protobuf::RepeatedField<int32_t>& entries,
    int num_tokens, const std::string& text);

}  // namespace lssar

#endif  // LSSAR_SERVER_API_PARSE_PARTS_H_
