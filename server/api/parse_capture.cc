#include "server/api/parse_parts.h"

#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "runtime/limits.h"
#include "server/api/fields.h"

namespace lssar {
namespace {

// Reads indices in [0, count); an empty list selects all.
template <typename Entries>
absl::StatusOr<std::vector<int32_t>> ReadIndices(const std::string& field, const Entries& entries,
                                                 int count) {
  if (entries.empty()) {
    std::vector<int32_t> all;
    all.resize(size_t(count));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  ASSIGN_OR_RETURN(auto chosen, CheckIds(field, entries, count));
  return SortedUnique(std::move(chosen));
}

// Bounds the number of keys of one row and of all rows.
absl::Status CheckSize(const CaptureParams& params) {
  const auto num_layers = int64_t(params.layers.size());
  const auto num_heads = int64_t(params.heads.size());
  const int64_t max_keys = params.rows.back() + 1;
  if (num_layers * num_heads * max_keys > limits::kMaxCaptureRowKeys) {
    return FieldError("layers", StrCat("x heads x keys of row ", params.rows.back(), " are ",
                                       num_layers, " x ", num_heads, " x ", max_keys,
                                       "; they must be at most ", limits::kMaxCaptureRowKeys));
  }
  const int64_t num_keys =
      std::accumulate(params.rows.begin(), params.rows.end(), int64_t(params.rows.size()));
  if (num_layers * num_heads * num_keys > limits::kMaxCaptureKeys) {
    return FieldError("layers", StrCat("x heads x keys of all ", params.rows.size(), " rows are ",
                                       num_layers, " x ", num_heads, " x ", num_keys,
                                       "; they must be at most ", limits::kMaxCaptureKeys));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Request> ParseCapture(const v1::CaptureAttentionRequest& message,
                                     const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  ASSIGN_OR_RETURN(auto layers,
                   ReadIndices("layers", message.layers(), checkpoint.config.num_hidden_layers));
  ASSIGN_OR_RETURN(auto heads,
                   ReadIndices("heads", message.heads(), checkpoint.config.num_attention_heads));
  RETURN_IF_ERROR(CheckRange("top_k", message.top_k(), 0, limits::kMaxModelLen.max));
  if (message.statistics() && message.top_k() > 0) {
    return ValueError("top_k", message.top_k(),
                      "0 where statistics is true: statistics are of all weights");
  }
  Request request;
  RETURN_IF_ERROR(ReadScheduling(message, context, &request));
  ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(message, context));
  if (prompt.ids.size() > size_t(context.max_model_len)) {
    return ContextLengthError(
        "prompt",
        StrCat("has ", prompt.ids.size(), " tokens; it must have at most max_model_len ",
               context.max_model_len),
        context.max_model_len, "the prompt");
  }
  const int num_tokens = int(prompt.ids.size());
  std::vector<int32_t> rows = {num_tokens - 1};
  if (!message.rows().empty()) {
    ASSIGN_OR_RETURN(rows, ReadPositions("rows", message.rows(), num_tokens, "the prompt"));
  }
  request.prompt = std::move(prompt.ids);
  request.params = CaptureParams{.layers = std::move(layers),
                                 .heads = std::move(heads),
                                 .rows = std::move(rows),
                                 .top_k = message.top_k(),
                                 .statistics = message.statistics()};
  RETURN_IF_ERROR(CheckSize(*request.Capture()));
  return request;
}

}  // namespace lssar
