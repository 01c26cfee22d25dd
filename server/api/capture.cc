#include "server/api/capture.h"

#include <utility>

#include "base/status_macros.h"
#include "server/api/parse_request.h"
#include "server/loaded_model.h"

namespace lssar {

absl::StatusOr<std::vector<SubRequest>> CaptureMethod::Parse() {
  std::vector<lssar::Request> requests;
  ASSIGN_OR_RETURN(requests.emplace_back(), ParseCapture(request, Context().MakeParseContext()));
  const CaptureParams& params = *requests[0].Capture();
  Context().AddLogFields({{"num_rows", params.rows.size()},
                          {"num_heads", params.layers.size() * params.heads.size()}});
  prompt_ = requests[0].prompt;
  prompt_.resize(size_t(params.rows.back()) + 1);
  request.Clear();
  return Items(std::move(requests));
}

void CaptureMethod::OnAdmitted(int /*item*/, const RequestStats& stats) {
  v1::CaptureAttentionReply reply;
  SetStarted(stats, reply.mutable_started());
  Send(std::move(reply));
  SendPrompt();
}

void CaptureMethod::SendPrompt() {
  const Tokenizer* const tokenizer = Context().Model().GetCheckpoint().tokenizer.get();
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

void CaptureMethod::OnResult(int /*item*/, EngineResult result) {
  if (const auto* rows = std::get_if<std::vector<RowWeights>>(&result)) SendRows(*rows);
  if (const auto* heads = std::get_if<std::vector<HeadStatistics>>(&result)) SendStatistics(*heads);
}

void CaptureMethod::SendRows(const std::vector<RowWeights>& rows) {
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

void CaptureMethod::SendStatistics(const std::vector<HeadStatistics>& heads) {
  ForEachBlock(heads.size(), [&](size_t first, size_t end) {
    v1::CaptureAttentionReply reply;
    for (size_t i = first; i < end; ++i) {
      *reply.mutable_statistics()->add_heads() = ToHeadStatistics(heads[i]);
    }
    Send(std::move(reply));
  });
}

void CaptureMethod::OnEnd(const absl::Status& status, const RequestStats& total) {
  if (!status.ok()) return;
  v1::CaptureAttentionReply reply;
  SetFinished(total, reply.mutable_finished());
  Send(std::move(reply));
}

}  // namespace lssar
