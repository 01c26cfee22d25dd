// CaptureAttention requests: which rows, heads and layers, and whether that is too much.
#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/limits.h"
#include "server/fields.h"
#include "server/parse_prompt.h"
#include "server/parse_request.h"
#include "server/parse_sharing.h"

namespace lssar {
namespace {

// Rising, each once.
std::vector<int32_t> Sorted(std::vector<int32_t> entries) {
  std::ranges::sort(entries);
  const auto repeats = std::ranges::unique(entries);
  entries.erase(repeats.begin(), repeats.end());
  return entries;
}

// Of [0, count); all of them where `entries` is empty.
template <typename Entries>
absl::StatusOr<std::vector<int32_t>> ReadChoice(const std::string& field, const Entries& entries,
                                                int count) {
  if (entries.empty()) {
    std::vector<int32_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  auto chosen = CheckIds(field, entries, count);
  if (!chosen.ok()) return chosen.status();
  return Sorted(*std::move(chosen));
}

template <typename Entries>
absl::StatusOr<std::vector<int32_t>> ReadRows(const Entries& entries, int num_tokens) {
  if (entries.empty()) return std::vector<int32_t>{num_tokens - 1};
  std::vector<int32_t> rows;
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    const int32_t row = entries[i];
    if (row < -num_tokens || row >= num_tokens) {
      return Refuse(StrCat("rows[", i, "]"), row,
                    StrCat("in [", -num_tokens, ", ", num_tokens, "): the prompt has ", num_tokens,
                           " tokens"));
    }
    rows.push_back(row < 0 ? row + num_tokens : row);
  }
  return Sorted(std::move(rows));
}

// Keys that are looked at, of one row and of all.
absl::Status CheckSize(const CaptureParams& params) {
  const auto num_layers = static_cast<int64_t>(params.layers.size());
  const auto num_heads = static_cast<int64_t>(params.heads.size());
  const int64_t most_keys = params.rows.back() + 1;
  if (num_layers * num_heads * most_keys > limits::kMaxCaptureRowKeys) {
    return absl::InvalidArgumentError(
        StrCat("layers x heads x keys of row ", params.rows.back(), " are ", num_layers, " x ",
               num_heads, " x ", most_keys, "; they must be at most ", limits::kMaxCaptureRowKeys));
  }
  const int64_t num_keys = std::accumulate(params.rows.begin(), params.rows.end(),
                                           static_cast<int64_t>(params.rows.size()));
  if (num_layers * num_heads * num_keys > limits::kMaxCaptureKeys) {
    return absl::InvalidArgumentError(
        StrCat("layers x heads x keys of all ", params.rows.size(), " rows are ", num_layers, " x ",
               num_heads, " x ", num_keys, "; they must be at most ", limits::kMaxCaptureKeys));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Request> ParseCapture(const v1::CaptureAttentionRequest& message,
                                     const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  auto layers = ReadChoice("layers", message.layers(), checkpoint.config.num_hidden_layers);
  if (!layers.ok()) return layers.status();
  auto heads = ReadChoice("heads", message.heads(), checkpoint.config.num_attention_heads);
  if (!heads.ok()) return heads.status();
  RETURN_IF_ERROR(CheckRange("top_k", message.top_k(), 0, limits::kMaxModelLen));
  Request request;
  RETURN_IF_ERROR(ReadSharing(message, request));
  auto prompt = ReadPrompt(message, checkpoint);
  if (!prompt.ok()) return prompt.status();
  if (prompt->ids.size() > static_cast<size_t>(context.max_model_len)) {
    return absl::InvalidArgumentError(StrCat("the prompt has ", prompt->ids.size(),
                                             " tokens; it must have at most max_model_len ",
                                             context.max_model_len));
  }
  auto rows = ReadRows(message.rows(), static_cast<int>(prompt->ids.size()));
  if (!rows.ok()) return rows.status();
  request.prompt = std::move(prompt->ids);
  request.capture = CaptureParams{.layers = *std::move(layers),
                                  .heads = *std::move(heads),
                                  .rows = *std::move(rows),
                                  .top_k = message.top_k()};
  RETURN_IF_ERROR(CheckSize(*request.capture));
  return request;
}

}  // namespace lssar
