#include "server/grpc/capture_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "server/api/parse_request.h"
#include "server/config/limits.h"
#include "server/grpc/adapter.h"

namespace lssar {

absl::StatusOr<Request> CaptureCall::Parse(const grpc::ByteBuffer& bytes) {
  v1::CaptureAttentionRequest message;
  RETURN_IF_ERROR(ReadMessage(bytes, &message));
  ASSIGN_OR_RETURN(Request request, ParseCapture(message, context_.MakeParseContext()));
  const CaptureParams& params = *request.capture;
  context_.AddLogFields({{"num_rows", params.rows.size()},
                         {"num_heads", params.layers.size() * params.heads.size()}});
  prompt_ = request.prompt;
  prompt_.resize(size_t(params.rows.back()) + 1);
  return request;
}

void CaptureCall::OnAdmitted(const RequestStats& stats) {
  context_.GetMetrics().OnAdmitted(stats);
  v1::CaptureAttentionReply reply;
  SetStarted(stats, reply.mutable_started());
  Send(std::move(reply));
  SendPrompt();
}

void CaptureCall::SendPrompt() {
  const Tokenizer* const tokenizer = context_.Model().GetCheckpoint().tokenizer.get();
  ForEachBlock(prompt_.size(), [&](size_t first, size_t end) {
    v1::CaptureAttentionReply reply;
    v1::PromptTokens& block = *reply.mutable_prompt();
    block.set_first(int(first));
    for (size_t i = first; i < end; ++i) {
      const TokenResult token = {.id = prompt_[i]};
      *block.add_tokens() =
          std::move(*ToToken(token, /*with_logprob=*/false, tokenizer).mutable_token());
    }
    Send(std::move(reply));
  });
}

void CaptureCall::OnWeights(std::vector<RowWeights> rows) {
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

void CaptureCall::OnStatistics(std::vector<HeadStatistics> heads) {
  ForEachBlock(heads.size(), [&](size_t first, size_t end) {
    v1::CaptureAttentionReply reply;
    for (size_t i = first; i < end; ++i) {
      *reply.mutable_statistics()->add_heads() = ToHeadStatistics(heads[i]);
    }
    Send(std::move(reply));
  });
}

void CaptureCall::OnDone(const absl::Status& status, const RequestStats& stats) {
  context_.SetResult(stats, std::nullopt);
  EndWith<v1::CaptureAttentionReply>(status, stats);
}

}  // namespace lssar
