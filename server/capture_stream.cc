#include "server/capture_stream.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "server/fields.h"
#include "server/limits.h"
#include "server/parse_request.h"
#include "server/wire.h"

namespace lssar {

absl::StatusOr<Request> CaptureStream::Parse(const grpc::ByteBuffer& bytes) {
  v1::CaptureAttentionRequest message;
  RETURN_IF_ERROR(ReadMessage(bytes, &message));
  const ServedModel& model = record_.Model();
  auto request = ParseCapture(
      message,
      {.checkpoint = &model.GetCheckpoint(), .max_model_len = model.MaxModelLen(), .any_seed = 0});
  if (!request.ok()) return request;
  const CaptureParams& params = *request->capture;
  record_.Note({{"num_rows", params.rows.size()},
                {"num_heads", params.layers.size() * params.heads.size()}});
  prompt_ = request->prompt;
  prompt_.resize(size_t(params.rows.back()) + 1);
  return request;
}

void CaptureStream::OnAdmitted(const RequestStats& stats) {
  record_.GetMetrics().OnAdmitted(stats);
  v1::CaptureAttentionReply reply;
  SetStarted(stats, *reply.mutable_started());
  Send(std::move(reply));
  SendPrompt();
}

void CaptureStream::SendPrompt() {
  const Tokenizer* const tokenizer = record_.Model().GetCheckpoint().tokenizer.get();
  for (size_t first = 0; first < prompt_.size(); first += limits::kMaxTokensPerMessage) {
    v1::CaptureAttentionReply reply;
    v1::PromptTokens& block = *reply.mutable_prompt();
    block.set_first(static_cast<int>(first));
    const size_t end = std::min(prompt_.size(), first + limits::kMaxTokensPerMessage);
    for (size_t i = first; i < end; ++i) {
      const TokenResult token = {.id = prompt_[i]};
      *block.add_tokens() =
          std::move(*ToToken(token, /*with_logprob=*/false, tokenizer).mutable_token());
    }
    Send(std::move(reply));
  }
}

void CaptureStream::OnWeights(std::vector<RowWeights> rows) {
  size_t num_keys = 0;
  v1::CaptureAttentionReply reply;
  for (const RowWeights& row : rows) {
    *reply.mutable_weights()->add_rows() = ToRowWeights(row);
    num_keys += row.keys.size();
    const bool is_full = num_keys >= limits::kMaxKeysPerMessage ||
                         reply.weights().rows_size() == limits::kMaxTokensPerMessage;
    if (!is_full && &row != &rows.back()) continue;
    Send(std::exchange(reply, {}));
    num_keys = 0;
  }
}

void CaptureStream::OnDone(const absl::Status& status, const RequestStats& stats) {
  record_.NoteRequest(stats, std::nullopt);
  EndWith<v1::CaptureAttentionReply>(status, stats);
}

}  // namespace lssar
